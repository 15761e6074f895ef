"""What the verdict rests on: paired differences to the baseline, and the margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, style
from suffice.measure.report.palette import BAND, FAINT, looks
from suffice.measure.results import Results
from suffice.measure.sentence import label, margin_points
from suffice.measure.verdict import Comparison, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.palette import Look


def difference_plot(results: Results, verdict: Verdict) -> Figure:
    """Draw the mean paired difference of test accuracy with its 95% interval.

    A mechanism suffices when its whole interval lies in the shaded part, right of minus the
    margin.
    """
    shown = sorted(
        (c for c in verdict.comparisons if c.difference is not None), key=lambda c: c.num_heads
    )
    found = looks(name for name, _ in results.pairs())
    with style():
        figure, ((axes,),) = blank(1, 1, width=9.0, height=1.3 + 0.4 * max(1, len(shown)))
        for place, comparison in enumerate(shown):
            _interval(axes, place, comparison, found[comparison.mechanism])
        margin = 100 * verdict.margin
        low, high = axes.get_xlim()
        low, high = min(low, -1.25 * margin), max(high, 0.4 * margin, 0.1)
        axes.axvspan(-margin, high, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axvline(-margin, color=FAINT[0], linewidth=1.2, linestyle=(0, (4, 2)))
        axes.axvline(0, color=FAINT[0], linewidth=1.0)
        axes.set_xlim(low, high)
        axes.set_yticks(range(len(shown)), [label(c.mechanism, c.num_heads) for c in shown])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(
            f"test accuracy minus {verdict.baseline}'s at equal heads, points "
            f"(dashed: margin, -{margin_points(verdict.margin)})"
        )
    return figure


def _interval(axes: Axes, place: int, comparison: Comparison, look: Look) -> None:
    """Draw one difference."""
    found = comparison.difference
    half = 0.0 if found.sd is None else 100 * (found.high - found.mean)
    axes.errorbar(
        100 * found.mean,
        place,
        xerr=half,
        color=look.colour,
        marker=look.marker,
        linewidth=1.8,
        markersize=7,
    )
