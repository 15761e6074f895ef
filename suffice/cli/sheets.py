"""Tables and lines on standard output, wide enough for a file or a pipe."""

from __future__ import annotations

from rich.console import Console

from suffice.measure.report.sheets import Sheet
from suffice.measure.report.table import lay_out

WIDTH = 150  # columns of a table that goes to a file or a pipe


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print one table and an empty line."""
    console.print(lay_out(sheet))
    console.print()


def say(text: str) -> None:
    """Print a line as it is."""
    wide().print(text, markup=False, highlight=False, soft_wrap=True)


def wide() -> Console:
    """Return standard output."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console
