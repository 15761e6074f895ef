"""The report on disk."""

from __future__ import annotations

from pathlib import Path

from suffice.measure.report.figures import draw_figures, save_figures
from suffice.measure.report.page import page
from suffice.measure.results import Results
from suffice.measure.storage import write_atomic
from suffice.measure.verdict import Verdict


def write_report(results: Results, verdict: Verdict, folder: Path) -> Path:
    """Write report.html, and the same figures beside it as PNG; return the page's file.

    Args:
        results: the comparison.
        verdict: what `judge` found.
        folder: where to; made if it is missing.

    Raises:
        DataError: if a file cannot be written.
    """
    figures = draw_figures(results, verdict)
    save_figures(figures, folder)
    path = folder / "report.html"
    write_atomic(path, page(results, verdict, figures))
    return path
