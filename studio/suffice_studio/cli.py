"""`suffice studio`: an interactive page, served on this machine only."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from suffice.cli.terminal import print_text
from suffice.errors import ConfigError
from suffice.utils import hub
from suffice.utils.files import refuse_current


def studio(
    port: Annotated[int, Option(help="Port; 0 = a free one.")] = 0,
    results: Annotated[
        list[Path] | None,
        Option(
            metavar="<path>",
            help="Folder of suffice compare or reproduce, or one with such folders; repeatable.",
        ),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        Option(help="Folder of a trained model, or one with such folders, or hf:ORG/NAME."),
    ] = None,
    no_open: Annotated[bool, Option("--no-open", help="Do not open a browser.")] = False,
    export: Annotated[
        Path | None,
        Option(
            help="Write calculator, patterns and results into this folder, as one page for any "
            "host, and exit."
        ),
    ] = None,
) -> None:
    """Open a page: state and cost of attention, patterns, results and attention maps.

    It is served at 127.0.0.1, to this machine only, loads nothing from the network, and opens files
    only in the folders named here. Ctrl-C stops it.
    """
    from suffice_studio import Folders, served
    from suffice_studio import export as export_page

    console = Console(stderr=True)
    if export is not None:
        if port or checkpoints or no_open:
            raise ConfigError(
                "--export writes a page and serves nothing; give it alone or with --results. "
                "Attention maps need the program."
            )
        refuse_current(export)
        folders = Folders(results=tuple(results or ()))
        print_text(f"wrote {export_page(export, folders)}", console)
        return
    checkpoints = checkpoints and hub.local(checkpoints)
    folders = Folders(results=tuple(results or ()), checkpoints=checkpoints)
    with served(folders, port) as server:
        print_text(f"studio: {server.url} (Ctrl-C stops it)", console)
        if not no_open:
            webbrowser.open(server.url)
        _wait_for_interrupt()


def _wait_for_interrupt() -> None:
    threading.Event().wait()
