"""The command line: one file per verb.

An error raised on purpose becomes one sentence on stderr and exit code 2; Ctrl-C ends with 130.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from suffice.cli.compare import compare
from suffice.cli.doctor import doctor
from suffice.cli.list import list_mechanisms
from suffice.cli.show import show
from suffice.errors import SufficeError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Which attention is enough? Compare mechanisms on your data and your machine.",
)
app.command("compare")(compare)
app.command("list")(list_mechanisms)
app.command("show")(show)
app.command("doctor")(doctor)


def main() -> None:
    """Run the command line."""
    console = Console(stderr=True)
    try:
        app()
    except SufficeError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        told = str(interrupt) or "interrupted."
        console.print(f"\n{told}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(130)
