"""The report folder of a table: figures as PNG and SVG, the figures behind them as JSON and CSV."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.measure.report.canvas import png, style
from suffice.measure.storage import write_atomic
from suffice.reproduce.figures import ACROSS, FIGURES
from suffice.reproduce.shown import Shown, to_csv
from suffice.reproduce.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(table: Table, shown: list[Shown], folder: Path) -> Path:
    """Write a table's figures and numbers and return the folder.

    Args:
        table: it says which figures.
        shown: its cells.
        folder: where to; made if it is missing.

    Raises:
        DataError: if a file cannot be written.
    """
    content = [part.to_json() for part in shown]
    write_atomic(folder / "table.json", json.dumps(content, indent=1) + "\n")
    write_atomic(folder / "table.csv", to_csv(shown))
    trained = [part for part in shown if part.request.shown]
    for name in table.figures:
        if name in ACROSS and trained:
            save(ACROSS[name](table, trained), folder / name)
    for part in trained:
        for name in [name for name in table.figures if name in FIGURES]:
            stem = name if len(shown) == 1 else f"{name}-{part.request.table.name}"
            save(FIGURES[name](part), folder / stem)
    return folder


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG and SVG; equal figures give equal files.

    Args:
        figure: what to write.
        path: without the ending.

    Raises:
        DataError: if a file cannot be written.
    """
    write_atomic(path.with_suffix(".png"), png(figure))
    write_atomic(path.with_suffix(".svg"), svg(figure, path.name))


def svg(figure: Figure, salt: str) -> str:
    """Return a figure as SVG without a date."""
    import matplotlib

    stream = StringIO()
    with style():
        matplotlib.rcParams["svg.hashsalt"] = salt
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
