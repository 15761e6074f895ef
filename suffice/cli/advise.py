"""`suffice advise`: recommend an attention for a task on this machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option
from typer.core import TyperCommand

from suffice.cli.options import ADVICE_RECIPES, Quiet, known, options_from_fields
from suffice.cli.terminal import INTERRUPTED, RULED, Stopped, print_json, print_paragraph, to_json
from suffice.errors import ConfigError
from suffice.utils.files import write_atomic
from suffice.utils.grammar import split_list

if TYPE_CHECKING:
    from suffice.measure.advise import Advice, Crossover, Place, Request
    from suffice.measure.advise.recipes import AdviceRecipe

MINUTES = 3.0
LIST = "list"
EXAMPLES = 3  # printed of each kind of composition without a rank
MAX_ROWS = 12  # rows of the table


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """The limits of a request, the model it is about and its evidence; None where not given."""

    length: Annotated[
        int | None, Option(help="Tokens or patches of an input; the model's by default.")
    ] = None
    memory: Annotated[
        str | None,
        Option(
            help="Memory for weights, state and activations, such as 2GB; this machine's by "
            "default."
        ),
    ] = None
    latency: Annotated[
        str | None,
        Option(help="Maximum time for each generated token or input, such as 30ms/token."),
    ] = None
    device: Annotated[str, Option(help="here (a GPU if there is one), cpu or cuda.")] = "here"
    quality: Annotated[
        str | None,
        Option(
            help="Test accuracy that may be lost, 1% by default; what is shown to lose more is not "
            "recommended."
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            help="Model whose sizes are measured: 15m, 110m or a configuration for lm, a recipe of "
            "`suffice compare` for the others."
        ),
    ] = None
    checkpoint: Annotated[
        Path | None, Option(help="Folder of a language model whose sizes are measured.")
    ] = None
    minutes: Annotated[float, Option(help="Minutes for everything.")] = MINUTES
    mechanisms: Annotated[
        str | None,
        Option(
            help="Only these, separated by commas: mechanisms with changes, such as "
            "efficient+window:512+memory:8; kv:N, window:W, sinks:N, full:N, softmax:N, memory:8 "
            "or 4, values:4, weights:8 or 4."
        ),
    ] = None
    results: Annotated[
        list[Path] | None,
        Option(
            metavar="<path>",
            help="Folder of a finished `suffice compare`: evidence where it is near; repeatable.",
        ),
    ] = None
    recall: Annotated[
        bool,
        Option(
            "--recall",
            help="The language model has to look things up in its input: only what suffices on a "
            "near task of recall is recommended.",
        ),
    ] = False

    def words(self) -> dict[str, Any]:
        """Return the fields of `Request.parse`."""
        return {
            **vars(self),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "mechanisms": split_list(self.mechanisms or ""),
            "results": [str(folder) for folder in self.results or ()],
        }


@options_from_fields
def advise(
    task: Annotated[
        str | None,
        Option(
            help="lm (writes text), classify (reads text), image or translate.",
            **known("task", "suffice.cli.options", "ADVICE_TASKS"),
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help="A known recipe, measured here; list describes them: "
            f"{', '.join(ADVICE_RECIPES)}.",
            **known("recipe of the adviser", "suffice.cli.options", "ADVICE_RECIPES", unless=LIST),
        ),
    ] = None,
    *,
    limits: AdviceOptions,
    out: Annotated[Path | None, Option(help="Write the advice as JSON to this file.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the advice as JSON only.")] = False,
    quiet: Quiet = False,
) -> None:
    """Recommend attention for a task on this machine, with the reasons against the others.

    Compositions that need too much are ruled out. The most promising of the rest are measured
    with Standard in the same rounds, with random weights in the model's sizes. What was measured
    slower than Standard is never recommended. Ctrl-C ends the measuring and prints the advice so
    far.
    """
    from suffice.measure.advise import advise as find_advice
    from suffice.measure.advise.recipes import RECIPES
    from suffice.utils.progress import show

    console = Console(highlight=False)
    if recipe == LIST:
        for source, recipes in groupby(RECIPES.values(), key=lambda known: known.source):
            print_paragraph(console, f"{source}:")
            for known in recipes:
                _print_recipe(console, known, indent="  ")
        return
    if out is not None and out.suffix != ".json":
        raise ConfigError(f"--out {out}: the advice is a file that ends in .json.")
    chosen, request = _request(task, recipe, limits.words())
    with show(Console(stderr=True), quiet=quiet) as progress:
        progress.cell("measuring")
        advice = find_advice(request, progress=progress)
    content = advice.to_json()
    if out is not None:
        write_atomic(out, to_json(content))
    if as_json:
        print_json(content)
    else:
        if chosen is not None:
            print_paragraph(console, f"{chosen.source}:")
            _print_recipe(console, chosen, indent="  ")
            for line in chosen.report(advice):
                print_paragraph(console, line, first="- ", rest="  ")
            console.print()
        print_advice(console, advice)
    if advice.interrupted:
        raise Stopped("interrupted: the rest was not measured.", code=INTERRUPTED)


class Command(TyperCommand):
    """Reads --recipe without a name as --recipe list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        if "--recipe" in args:
            after = args.index("--recipe") + 1
            if after == len(args) or args[after].startswith("-"):
                args = [*args[:after], LIST, *args[after:]]
        return super().parse_args(ctx, args)


def _request(
    task: str | None, recipe: str | None, words: dict[str, Any]
) -> tuple[AdviceRecipe | None, Request]:
    from suffice.measure.advise import TASKS, Request
    from suffice.measure.advise.recipes import recipe_named

    if recipe is None:
        if task is None:
            raise ConfigError(
                f"give --task with one of {', '.join(TASKS)}; or --recipe {LIST} for known recipes."
            )
        return None, Request.parse(task, **words)
    chosen = recipe_named(recipe)
    if task not in (None, chosen.task):
        raise ConfigError(
            f"--recipe {recipe} is for --task {chosen.task}; leave --task {task} out."
        )
    if words["mechanisms"]:
        raise ConfigError(f"--recipe {recipe} has its own compositions; leave --mechanisms out.")
    return chosen, chosen.request(words)


def _print_recipe(console: Console, recipe: AdviceRecipe, indent: str) -> None:
    title = f"{recipe.name}: {recipe.title} ({recipe.section})"
    print_paragraph(console, title, first=indent, rest=f"{indent}  ")
    print_paragraph(console, recipe.about, first=f"{indent}  ", rest=f"{indent}  ")


def print_advice(console: Console, advice: Advice) -> None:
    """Print the recommendation, the table, the reasons, what was left out, and the lines to use."""
    print_paragraph(console, advice.sentence)
    console.print()
    facts = advice.machine
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    print_paragraph(
        console,
        f"{advice.model}, inputs of {advice.length:,}, random weights, on {advice.device} "
        f"({facts['cpu']}, {threads}), {advice.seconds:.0f} s",
    )
    ranked = [place for place in advice.places if place.rank is not None]
    if ranked:
        console.print()
        console.print(_table(advice, ranked[:MAX_ROWS]))
        if len(ranked) > MAX_ROWS:
            print_paragraph(
                console, f"and {len(ranked) - MAX_ROWS} more that were measured; --json has all."
            )
        console.print()
        for place in ranked[:MAX_ROWS]:
            print_paragraph(console, f"{place.rank}. {place.name}: {place.reason}", rest="   ")
            print_paragraph(console, f"quality: {place.evidence_told}", first="   ", rest="   ")
    _print_unranked(console, advice)
    console.print()
    for note in advice.notes:
        print_paragraph(console, note, first="- ", rest="  ")
    _print_usage(console, advice)


def _table(advice: Advice, places: list[Place]) -> Table:
    from suffice.measure.advise.request import each, format_bytes, format_seconds

    table = Table(**RULED)
    table.add_column("")
    table.add_column("composition")
    reads = any(place.first_seconds is not None for place in places)
    columns = [each(advice.unit), "x Standard", *(["reading"] if reads else []), "needs"]
    for name in (*columns, "faster from"):
        table.add_column(name, justify="right", no_wrap=True)
    for place in places:
        ratio = "" if place.ratio is None else f"{place.ratio.median:.2f}"
        first = [format_seconds(place.first_seconds)] if place.first_seconds is not None else []
        table.add_row(
            str(place.rank),
            place.name.replace("+", " +"),
            format_seconds(place.seconds.median),
            ratio,
            *first,
            format_bytes(place.needs.total),
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


def _print_unranked(console: Console, advice: Advice) -> None:
    rest = [place for place in advice.places if place.rank is None]
    counts = Counter(place.status for place in rest)
    for status, count in counts.items():
        console.print()
        print_paragraph(console, f"{status}: {count}")
        for place in [place for place in rest if place.status == status][:EXAMPLES]:
            why = place.reason.removeprefix(f"{status}: ")
            print_paragraph(console, f"{place.name}: {why}", first="  ", rest="    ")
        if count > EXAMPLES:
            print_paragraph(console, "  ...")


def _print_usage(console: Console, advice: Advice) -> None:
    if advice.winner is None:
        return
    for title, lines in (("Python", advice.python), ("Command line", advice.cli)):
        console.print(f"\n{title}:", markup=False)
        lines = lines or ("no command reaches this composition; use the Python lines.",)
        console.print("\n".join(f"  {line}" for line in lines), markup=False, soft_wrap=True)
