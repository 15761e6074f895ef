"""`suffice advise`: which attention to take for a task on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from suffice.cli.stop import INTERRUPTED, Stopped
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.advise import Request

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
    from suffice.cli.advised import print_advice, print_recipe, print_recipes
    from suffice.measure.storage import write_atomic
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
    from suffice.cli.asked import words

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
