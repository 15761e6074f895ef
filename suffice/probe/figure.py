"""Recall against state size: what a layer keeps, and how much of it can be found again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, legend, panels_width, png, style
from suffice.measure.report.palette import FAINT, looks
from suffice.measure.storage import write_atomic
from suffice.probe.report import Finding, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.palette import Look

FILE = "recall.png"


def recall_figure(report: Report) -> Figure:
    """Draw recall over state, one panel per number of pairs; the line across is chance.

    A mechanism's points are its widths, joined; the bars are 95% intervals over seeds.
    """
    shown = [one for one in report.findings if one.pairs is not None]
    found = looks(one.mechanism for one in shown)
    pairs = sorted({one.pairs for one in shown if one.pairs is not None})
    with style():
        figure, axes = blank(
            1, len(pairs), width=panels_width(len(pairs)), height=3.6, sharey="all"
        )
        for panel, number in zip(axes[0], pairs, strict=True):
            _panel(panel, [one for one in shown if one.pairs == number], found)
            panel.set_title(f"{number} pairs")
            panel.set_xlabel("state of a layer, bytes")
        axes[0][0].set_ylabel("recall, % of test answers")
        legend(figure, found)
    return figure


def write_figure(report: Report, folder: Path) -> Path | None:
    """Write the figure as PNG and return its file; None where nothing was recalled.

    Raises:
        DataError: if it cannot be written.
    """
    if all(one.pairs is None for one in report.findings):
        return None
    write_atomic(folder / FILE, png(recall_figure(report)))
    return folder / FILE


def _panel(axes: Axes, shown: Sequence[Finding], found: dict[str, Look]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.axhline(100 * shown[0].chance, color=FAINT[0], linewidth=1.0, linestyle=":", zorder=0.6)
    for mechanism, look in found.items():
        own = sorted((one for one in shown if one.mechanism == mechanism), key=_state)
        ends = [_ends(one) for one in own]
        axes.errorbar(
            [one.state for one in own],
            [mean for _, mean, _ in ends],
            yerr=[[mean - low for low, mean, _ in ends], [high - mean for _, mean, high in ends]],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dash,
        )
    axes.set_xscale("log", base=2)
    # plain numbers: the report's style writes no formulas
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(-3, 103)


def _state(one: Finding) -> float:
    return one.state


def _ends(one: Finding) -> tuple[float, float, float]:
    """Return the mean and the ends of its interval in percent, within what can be."""
    found = one.accuracy
    low, high = (found.mean if end is None else end for end in (found.low, found.high))
    return 100 * max(low, 0.0), 100 * found.mean, 100 * min(high, 1.0)
