"""Every figure of the report by name, with what to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.measure.report.canvas import png
from suffice.measure.report.curves import learning_curves
from suffice.measure.report.differences import difference_plot
from suffice.measure.report.latency import latency_bars
from suffice.measure.report.tradeoff import tradeoff
from suffice.measure.results import Results
from suffice.measure.storage import write_atomic
from suffice.measure.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure of the report.

    Args:
        title: heading above it.
        caption: how to read it.
        draw: makes it.
        shown: whether these results have what it shows.
    """

    title: str
    caption: str
    draw: Callable[[Results, Verdict], Figure]
    shown: Callable[[Results, Verdict], bool] = lambda _results, _verdict: True


FIGURES = {
    "differences": Plot(
        title="Difference to the baseline",
        caption="Mean difference of test accuracy, paired by seed, with its 95% interval. A "
        "mechanism suffices when its whole interval lies in the shaded part.",
        draw=difference_plot,
        shown=lambda _results, verdict: any(c.difference for c in verdict.comparisons),
    ),
    "tradeoff": Plot(
        title="Cost against quality",
        caption="Mean test accuracy over seeds; the bars are 95% intervals of each mean by "
        "itself. The line is the baseline, the band below it the margin. The verdict rests on "
        "the paired differences above, not on whether bars reach the band.",
        draw=tradeoff,
    ),
    "curves": Plot(
        title="Learning curves",
        caption="Mean over seeds and its 95% interval, as far as at least half of the seeds "
        "trained.",
        draw=lambda results, _verdict: learning_curves(results),
        shown=lambda results, _verdict: any(cell.epochs for cell in results.cells),
    ),
    "latency": Plot(
        title="Latency",
        caption="Median forward of one batch; whiskers are quartiles; in brackets the ratio to "
        "the baseline at equal heads, the median over rounds. Measured interleaved.",
        draw=latency_bars,
        shown=lambda results, _verdict: bool(results.speeds),
    ),
}


def draw_figures(results: Results, verdict: Verdict) -> dict[str, Figure]:
    """Draw every figure that these results have the numbers for, by name."""
    return {
        name: plot.draw(results, verdict)
        for name, plot in FIGURES.items()
        if plot.shown(results, verdict)
    }


def save_figures(figures: dict[str, Figure], folder: Path) -> list[Path]:
    """Save figures as PNG and return their files.

    Raises:
        DataError: if a file cannot be written.
    """
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        write_atomic(paths[-1], png(figure))
    return paths
