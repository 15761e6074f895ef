"""`suffice studio`: a page to look at, served on this machine alone."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suffice.errors import ConfigError


def studio(
    port: Annotated[int, typer.Option(help="To listen at; 0 = a free one.")] = 0,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="<path>",
            help="A folder of suffice compare or reproduce, or with such; repeatable.",
        ),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="A folder of a trained model, or with such folders."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write calculator and patterns into this folder as one page, and end."),
    ] = None,
) -> None:
    """Open a page: what attention keeps and costs, who sees whom, results, attention maps.

    It is served at 127.0.0.1 and to this machine alone, loads nothing from elsewhere, and opens
    files in the folders named here and in no other. Ctrl-C ends it.
    """
    from suffice.studio import Folders, served
    from suffice.studio import export as write

    console = Console(stderr=True, highlight=False)
    if export is not None:
        if port or results or checkpoints or no_open:
            raise ConfigError("--export writes a page and serves nothing; give it alone.")
        console.print(f"wrote {write(export)}", markup=False, soft_wrap=True)
        return
    folders = Folders(results=tuple(results or ()), checkpoints=checkpoints)
    with served(folders, port) as found:
        console.print(f"studio: {found.url} (Ctrl-C ends it)", markup=False, soft_wrap=True)
        if not no_open:
            webbrowser.open(found.url)
        _wait()


def _wait() -> None:
    """Wait for Ctrl-C while a page is served."""
    threading.Event().wait()
