"""The command line: one file per verb.

An error raised on purpose becomes one sentence on stderr and exit code 2; Ctrl-C ends with 130.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from suffice import __version__
from suffice.cli.advise import BareRecipe, advise
from suffice.cli.bench import bench
from suffice.cli.compare import compare
from suffice.cli.convert import convert
from suffice.cli.doctor import doctor
from suffice.cli.evaluate import evaluate
from suffice.cli.export import export
from suffice.cli.generate import generate
from suffice.cli.heal import heal
from suffice.cli.list import list_mechanisms
from suffice.cli.plan import plan
from suffice.cli.probe import probe
from suffice.cli.quantise import quantise
from suffice.cli.reproduce import reproduce
from suffice.cli.run import run
from suffice.cli.search import search
from suffice.cli.show import show
from suffice.cli.studio import studio
from suffice.cli.terminal import INTERRUPTED, WRONG, Stopped, is_first, stoppable
from suffice.cli.train import train
from suffice.errors import SufficeError

GRACE = 5.0  # seconds in which the first process speaks; torchrun ends the others when it leaves

app = typer.Typer(
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which attention is enough? Compare mechanisms on your data and your machine.",
)


def _versions(wanted: bool) -> None:
    """Print the versions of this package and of torch, and end."""
    if wanted:
        typer.echo(f"suffice {__version__}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def _before(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_versions,
            is_eager=True,
            help="Print the versions of suffice and torch.",
        ),
    ] = False,
) -> None:
    """Take what stands before the verb."""


app.command("compare", short_help="Train mechanisms and say which one suffices.")(
    stoppable(compare)
)
app.command("advise", cls=BareRecipe, short_help="Say which attention to take here, and why.")(
    stoppable(advise)
)
app.command("reproduce", short_help="Print a table of the papers, ours beside theirs.")(
    stoppable(reproduce)
)
app.command("train", short_help="Train a language model.")(stoppable(train))
app.command("plan", short_help="Tell what a training needs: memory, time, GPUs.")(stoppable(plan))
app.command("evaluate", short_help="Measure a trained language model.")(stoppable(evaluate))
app.command("generate", short_help="Write text with a trained language model.")(stoppable(generate))
app.command("bench", short_help="Measure how fast a language model writes here.")(stoppable(bench))
app.command("quantise", short_help="Pack a trained language model into 8 or 4 bits.")(
    stoppable(quantise)
)
app.command("convert", short_help="Give a trained model cheaper attention.")(stoppable(convert))
app.command("search", short_help="Choose the attention of each layer within a budget.")(
    stoppable(search)
)
app.command("heal", short_help="Train a converted model back towards what it was.")(stoppable(heal))
app.command("probe", short_help="Ask what attention recalls, beside controls that must fail.")(
    stoppable(probe)
)
app.command("export", short_help="Write a model for transformers, ONNX Runtime or torch.")(
    stoppable(export)
)
app.command("run", short_help="Write text with an exported model.")(stoppable(run))
app.command("studio", short_help="Open a page: calculator, patterns, results, maps.")(
    stoppable(studio)
)
app.command("list", short_help="List the mechanisms, their cost and source.")(
    stoppable(list_mechanisms)
)
app.command("show", short_help="Show one mechanism: spec, counts, op plan.")(stoppable(show))
app.command("doctor", short_help="Check every op on this device.")(stoppable(doctor))


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="suffice")
    except SufficeError as error:
        _end(f"error: {error}", WRONG)
    except Stopped as stopped:
        _end(str(stopped), stopped.code)


def _end(told: str, code: int) -> None:
    """Say why and leave; of several processes the first one speaks."""
    if not is_first():
        if code == INTERRUPTED:
            sys.exit(code)
        time.sleep(GRACE)
    style = "red" if code == WRONG else None
    console = Console(stderr=True, emoji=False)  # a user's ":four:" is no picture
    console.print(told, style=style, markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
