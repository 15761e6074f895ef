"""The report's tables in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.measure.report.rows import build_rows
from suffice.measure.report.sheets import Line, Sheet, sheets
from suffice.measure.results import Results
from suffice.measure.sentence import notes, sentence
from suffice.measure.verdict import Verdict

DIM = "dim"
STYLES = {
    "suffices": "green",
    "does not suffice": "red",
    "better": "green",
    "worse": "red",
    "undecided": "yellow",
}


def tables(results: Results, verdict: Verdict) -> list[Table]:
    """Return the tables of the report, readable at 100 columns."""
    found = sheets(results, verdict, build_rows(results, verdict))
    return [lay_out(sheet) for sheet in found if sheet.lines]


def print_report(results: Results, verdict: Verdict, console: Console) -> None:
    """Print the tables, the verdict and what it does not say.

    Args:
        results: the comparison.
        verdict: what `judge` found.
        console: where to.
    """
    for table in tables(results, verdict):
        console.print(table)
        console.print()
    console.print(Text(sentence(verdict, results), style="bold"))
    for note in notes(verdict, results):
        console.print(Text(f"- {note}", style=DIM))


def lay_out(sheet: Sheet) -> Table:
    """Lay out one table for the terminal."""
    table = Table(
        title=Text(sheet.title, style="bold"),
        caption=Text(sheet.caption, style=DIM),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for i, column in enumerate(sheet.columns):
        words = i == 0 or column in sheet.words
        table.add_column(
            Text(column), justify="left" if words else "right", no_wrap=i == 0, overflow="fold"
        )
    for line in sheet.lines:
        if line.starts_group:
            table.add_section()
        table.add_row(*_cells(line), style=DIM if line.from_paper else None)
    return table


def _cells(line: Line) -> list[Text]:
    """Turn texts into cells that are never read as markup."""
    cells = [Text(cell, style=STYLES.get(cell.partition(":")[0], "")) for cell in line.cells]
    if line.from_paper:
        cells[0] = Text(f"  {line.cells[0]}")
    return cells
