"""The command line: one file per verb, imported when the verb is called.

A verb in `SIBLINGS` comes from another distribution, by an entry point of `suffice.verbs`.

An error raised on purpose becomes one sentence on stderr and exit code 2, as does what a library
raises about an input; Ctrl-C, SIGTERM and SIGHUP end with 130.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Option
from typer.core import TyperGroup

from suffice import __version__
from suffice.cli.terminal import (
    INTERRUPTED,
    WRONG,
    Stopped,
    ending_as_interrupt,
    is_first,
    stoppable,
    without_empty_words,
)
from suffice.errors import ConfigError, SufficeError, install_line

GRACE = 5.0  # seconds that the first process has to print; torchrun ends the others when it exits
VERBS = {
    "compare": "Train mechanisms and say which one suffices.",
    "predict": "Label new rows or images with a trained model.",
    "verdict": "Say whether a difference between results is real.",
    "convert": "Replace the attention of a trained model by a cheaper one.",
    "generate": "Write text with a trained language model.",
    "fits": "Say whether a decoder or its training fits into a memory.",
    "studio": "Open a page: calculator, patterns, results, maps.",
    "advise": "Recommend attention for a task on this machine.",
    "reproduce": "Print a table of the papers, ours next to theirs.",
    "train": "Train a language model.",
    "evaluate": "Measure a trained language model: text, or recall.",
    "serve": "Serve a model over the OpenAI API.",
    "bench": "Measure how fast a language model decodes here.",
    "quantise": "Pack a trained language model into 8 or 4 bits.",
    "search": "Choose the attention of each layer within a budget.",
    "heal": "Train a converted model to recover its quality.",
    "export": "Write a model for transformers, ONNX Runtime or llama.cpp.",
    "run": "Generate text from an exported model.",
    "list": "List the mechanisms, their cost and source.",
    "show": "Show one mechanism: spec, counts, op plan.",
    "doctor": "Check every op on this device.",
}
SIBLINGS = {
    "serve": ("suffice-serve", "serving"),
    "studio": ("suffice-studio", "studio"),
    "reproduce": ("suffice-papers", "papers"),
}
"""Distributions that bring verbs, and their folders in the repository."""
FIRST = 7  # verbs that carry the work; help lists the others below "More"


class _LazyVerbs(TyperGroup):
    """Lists commands by name and summary, and imports only the module of the command that runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining words."""
        name, command, words = super().resolve_command(ctx, args)
        return name, command and _load(name), words

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the verbs, those of most use first."""
        verbs = [*VERBS.items()]  # `list` is a verb, too
        for title, some in (("Commands", verbs[:FIRST]), ("More", verbs[FIRST:])):
            with formatter.section(title):
                formatter.write_dl(some)


def _load(verb: str) -> Any:
    """Return the command in a verb's module: its function VERB, with its class Command if any."""
    module = module_of(verb)
    function = getattr(module, "list_mechanisms" if verb == "list" else verb)
    loader = typer.Typer(add_completion=False, rich_markup_mode=None)
    loader.command(verb, cls=getattr(module, "Command", None))(
        stoppable(without_empty_words(function))
    )
    return typer.main.get_command(loader)


def module_of(verb: str) -> Any:
    """Import the module of a verb."""
    if verb not in SIBLINGS:
        return import_module(f"suffice.cli.{'show' if verb == 'list' else verb}")
    for entry in entry_points(group="suffice.verbs", name=verb):
        return entry.load()
    name, folder = SIBLINGS[verb]
    command = install_line(name, folder=folder)
    raise ConfigError(f"suffice {verb} needs {name}, which is not installed: {command}.")


app = typer.Typer(
    cls=_LazyVerbs,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which attention is enough? Compare mechanisms on your data and your machine.",
)
for _verb, _summary in VERBS.items():
    app.command(_verb, short_help=_summary)(lambda: None)


def _print_versions(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suffice {__version__}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of suffice and torch.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    try:
        with ending_as_interrupt():
            _run()
    except SufficeError as error:
        _exit(f"error: {error}", WRONG)
    except Stopped as stopped:
        _exit(str(stopped), stopped.code)
    except BaseException as error:
        _exit_of_library(error)
        raise


LONGEST_WORD = 400  # characters of an option that a message repeats


def _with_short_words(message: str) -> str:
    from suffice.utils.boundary import shortened

    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: shortened(word[0]), message)


def _run() -> None:
    try:
        app(prog_name="suffice")
    except SystemExit:
        sys.stdout.flush()
        raise


def _exit_of_library(error: BaseException) -> None:
    """Exit with a sentence if a library refused an input; return for anything else."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return
    from suffice.utils.boundary import SHOW, translate_exception

    reason = translate_exception(error)
    if reason is None or os.environ.get(SHOW):
        return
    with contextlib.suppress(OSError):  # what a full disk refused is refused again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _exit(f"error: {reason}", WRONG)


def _exit(message: str, code: int) -> None:
    """Print why and exit; of several processes the first one prints."""
    message = _with_short_words(message)
    if not is_first():
        if code == INTERRUPTED:
            sys.exit(code)
        time.sleep(GRACE)
    console = Console(stderr=True, emoji=False)  # ":four:" in a message stays as it is
    style = "red" if message.startswith("error: ") else None
    console.print(message, style=style, markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
