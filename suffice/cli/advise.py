"""`suffice advise`: which attention to take for a task on this machine."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from suffice.cli.terminal import INTERRUPTED, Stopped, write
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.advise import Advice, Crossover, Place, Request
    from suffice.advise.recipes import AdviceRecipe


MINUTES = 3.0
LIST = "list"
RECIPES = (
    "tiny-edge, cloud-api, long-context, decision-tree, local-global, gqa-qk-norm or hybrid-linear"
)


def advise(
    task: Annotated[
        str | None,
        typer.Option(help="lm (writes text), classify (reads text), image or translate."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help=f"A known recipe, measured here: {RECIPES}; list tells of them all."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens or patches of an input; the model's by default.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="For weights, state and activations, such as 2GB; this machine's."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(help="Of a token that is written, or of an input, such as 30ms/token."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="here (a GPU where there is one), cpu or cuda.")
    ] = "here",
    quality: Annotated[
        str | None,
        typer.Option(
            help="Test accuracy that may be lost, such as 1%: what is shown to lose more is not "
            "recommended."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Whose sizes are measured: 15m, 110m or a configuration for lm, a recipe of "
            "`suffice compare` for the others."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a language model whose sizes are measured.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="For everything.")] = MINUTES,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="Only these, separated by commas: mechanisms with changes, such as "
            "efficient+window:512+memory:8; kv:N, window:W, sinks:N, full:N, softmax:N, memory:8 "
            "or 4, weights:8 or 4."
        ),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="<path>",
            help="Folder of a finished `suffice compare`, as evidence; repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the advice as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Say which attention to take for a task on this machine, and why each other one is not it.

    Legal compositions are ruled out by what they need, then the most promising are measured beside
    Standard in the same rounds, with random weights in the model's sizes. What was measured slower
    than Standard is never recommended. Ctrl-C ends the measuring and prints what is known by then.
    """
    from suffice.advise import advise as run
    from suffice.files import write_atomic
    from suffice.train import show

    console = Console(highlight=False)
    if recipe == LIST:
        print_recipes(console)
        return
    given: dict[str, Any] = {
        "length": length,
        "memory": memory,
        "latency": latency,
        "device": device,
        "quality": quality,
        "model": model,
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "minutes": minutes,
        "mechanisms": _words(mechanisms),
        "results": [str(folder) for folder in results or ()],
    }
    chosen, request = _asked(task, recipe, given)
    with show(Console(stderr=True), cells=1, quiet=quiet) as progress:
        progress.cell("measuring")
        found = run(request, progress=progress)
    text = json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n"
    if out is not None:
        write_atomic(out, text)
    if as_json:
        sys.stdout.write(text)
    else:
        if chosen is not None:
            print_recipe(console, chosen, found)
        print_advice(console, found)
    if found.interrupted:
        raise Stopped("interrupted: the rest was not measured.", code=INTERRUPTED)


class BareRecipe(TyperCommand):
    """The command with a --recipe that names none: it lists them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        for at, word in enumerate(args):
            if word == "--recipe" and (args[at + 1 :] or ["-"])[0].startswith("-"):
                args = [*args[: at + 1], LIST, *args[at + 1 :]]
                break
        return super().parse_args(ctx, args)


def _words(listed: str | None) -> tuple[str, ...]:
    from suffice.cli.compare_options import words

    return () if listed is None else words(listed)


def _asked(task: str | None, recipe: str | None, given: dict[str, Any]) -> tuple[Any, Request]:
    """Return the recipe, if one is named, and what is asked.

    Raises:
        ConfigError: for neither a task nor a recipe, or what does not go together.
    """
    from suffice.advise import TASKS, Request, recipes

    if recipe is None:
        if task is None:
            raise ConfigError(
                f"give --task with one of {', '.join(TASKS)}; or --recipe {LIST} for known ones."
            )
        return None, Request.of_words(task, **given)
    chosen = recipes.recipe_named(recipe)
    if task not in (None, chosen.task):
        raise ConfigError(
            f"--recipe {recipe} is for --task {chosen.task}; leave --task {task} out."
        )
    if given["mechanisms"]:
        raise ConfigError(f"--recipe {recipe} has its own compositions; leave --mechanisms out.")
    return chosen, chosen.request(given)


SHOWN = 3  # of those that are ruled out, not measured or illegal
RANKED = 12  # lines of the table
LOOK: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}


def print_advice(console: Console, found: Advice) -> None:
    """Print the table, the reasons, what was left out, and the recommendation with its lines."""
    facts = found.machine
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    write(
        console,
        f"{found.model}, inputs of {found.length:,}, random weights, on {found.device} "
        f"({facts['cpu']}, {threads}), {found.seconds:.0f} s",
    )
    ranked = [place for place in found.places if place.rank is not None]
    if ranked:
        console.print()
        console.print(_table(found, ranked[:RANKED]))
        if len(ranked) > RANKED:
            write(console, f"and {len(ranked) - RANKED} more that were measured; --json has all.")
        console.print()
        for place in ranked[:RANKED]:
            write(console, f"{place.rank}. {place.name}: {place.reason}", rest="   ")
            write(console, f"quality: {place.evidence_told}", first="   ", rest="   ")
    _left_out(console, found)
    console.print()
    write(console, found.sentence)
    for note in found.notes:
        write(console, note, first="- ", rest="  ")
    _lines(console, found)


def _table(found: Advice, places: list[Place]) -> Table:
    from suffice.advise.ranking import sized, timed
    from suffice.advise.request import each

    table = Table(**LOOK)
    table.add_column("")
    table.add_column("composition")
    reads = any(place.first_seconds is not None for place in places)
    columns = [each(found.unit), "x Standard", *(["reading"] if reads else []), "needs"]
    for name in (*columns, "faster from"):
        table.add_column(name, justify="right", no_wrap=True)
    for place in places:
        ratio = "" if place.ratio is None else f"{place.ratio.median:.2f}"
        first = [timed(place.first_seconds)] if place.first_seconds is not None else []
        table.add_row(
            str(place.rank),
            place.name.replace("+", " +"),
            timed(place.seconds.median),
            ratio,
            *first,
            sized(place.needs.total),
            "" if place.name == "standard" else _from(place.crossover),
        )
    return table


def _from(crossover: Crossover | None) -> str:
    """Return from which length on a mechanism is faster."""
    if crossover is None:
        return "not measured"
    lengths = [length for length, _ in crossover.ratios]
    if crossover.at is None:
        return f"not within {lengths[0]} to {lengths[-1]}"
    return f"{crossover.at}" if crossover.at > lengths[0] else f"{crossover.at} or less"


def _left_out(console: Console, found: Advice) -> None:
    """Tell some of each kind that has no rank."""
    rest = [place for place in found.places if place.rank is None]
    counts = Counter(place.status for place in rest)
    for status, count in counts.items():
        console.print()
        write(console, f"{status}: {count}")
        for place in [one for one in rest if one.status == status][:SHOWN]:
            why = place.reason.removeprefix(f"{status}: ")
            write(console, f"{place.name}: {why}", first="  ", rest="    ")
        if count > SHOWN:
            write(console, "  ...")


def _lines(console: Console, found: Advice) -> None:
    """Print the lines to use the winner by."""
    if found.winner is None:
        return
    for title, lines in (("Python", found.python), ("Command line", found.cli)):
        console.print(f"\n{title}:", markup=False)
        told = lines or ("no command reaches this composition; use the Python lines.",)
        console.print("\n".join(f"  {line}" for line in told), markup=False, soft_wrap=True)


def print_recipes(console: Console) -> None:
    """Print every recipe of the adviser."""
    from suffice.advise.recipes import RECIPES

    for name, one in RECIPES.items():
        write(console, f"{name}: {one.title}")
        write(console, f"{one.about} Source: {one.source}.", first="  ", rest="  ")


def print_recipe(console: Console, one: AdviceRecipe, found: Advice) -> None:
    """Print what a recipe says, beside what was found here."""
    write(console, f"{one.name}: {one.title}")
    write(console, f"{one.about} Source: {one.source}.")
    for line in one.held(found):
        write(console, line, first="- ", rest="  ")
    console.print()
