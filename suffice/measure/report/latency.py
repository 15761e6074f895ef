"""Latency bars: median forward of a batch, quartiles, and the ratio to the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, style
from suffice.measure.report.numbers import seconds
from suffice.measure.report.palette import INK, looks
from suffice.measure.report.rows import Row, build_rows
from suffice.measure.results import Results
from suffice.measure.sentence import count_heads
from suffice.measure.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.palette import Look


def latency_bars(results: Results, verdict: Verdict) -> Figure:
    """Draw one bar per timed mechanism, one panel per number of heads.

    The bar is the median over rounds, the whisker reaches from the first to the third quartile.
    """
    rows = [row for row in build_rows(results, verdict) if row.latency is not None]
    heads = sorted({row.num_heads for row in rows})
    found = looks(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            max(1, len(heads)),
            1,
            width=9.0,
            height=0.9 + sum(0.5 + 0.36 * _count(rows, h) for h in heads),
            sharex="all",
        )
        for (panel,), num_heads in zip(axes, heads, strict=False):
            _panel(panel, [row for row in rows if row.num_heads == num_heads], found)
            panel.set_title(count_heads(num_heads))
        axes[-1][0].set_xlim(0, 1.3e3 * max((row.latency.high for row in rows), default=1e-3))
        axes[-1][0].set_xlabel("latency of one batch, ms")
    return figure


def _count(rows: list[Row], num_heads: int) -> int:
    """Count the bars of one panel."""
    return sum(row.num_heads == num_heads for row in rows)


def _panel(axes: Axes, rows: list[Row], found: dict[str, Look]) -> None:
    """Draw the bars of one number of heads, the first on top."""
    places = range(len(rows))
    medians = [1e3 * row.latency.median for row in rows]
    below = [1e3 * (row.latency.median - row.latency.low) for row in rows]
    above = [1e3 * (row.latency.high - row.latency.median) for row in rows]
    axes.barh(places, medians, height=0.62, color=[found[row.mechanism].colour for row in rows])
    axes.errorbar(medians, places, xerr=[below, above], fmt="none", ecolor=INK[0], elinewidth=1.2)
    for place, row in zip(places, rows, strict=True):
        times = "" if row.latency_ratio is None else f"  ({row.latency_ratio:.2f}x)"
        axes.annotate(
            seconds(row.latency.median) + times,
            (1e3 * row.latency.high, place),
            textcoords="offset points",
            xytext=(6, 0),
            va="center",
        )
    axes.set_yticks(places, [row.mechanism for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
