"""Learning curves: validation loss and accuracy per epoch, mean and 95% interval over seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, legend, panels_width, style
from suffice.measure.report.palette import looks
from suffice.measure.results import Cell, Results
from suffice.measure.sentence import count_heads
from suffice.measure.statistics import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.palette import Look

CURVES = (
    ("validation_loss", "validation loss"),
    ("validation_accuracy", "validation accuracy, %"),
)

WIDE = 10  # a loss that falls by this factor is drawn on a log scale


def learning_curves(results: Results) -> Figure:
    """Draw one column per number of heads, one line per mechanism."""
    from matplotlib.ticker import MaxNLocator

    heads = sorted({h for _, h in results.pairs()})
    found = looks(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            2,
            len(heads),
            width=panels_width(len(heads)),
            height=6.0,
            sharex="all",
            sharey="row",
        )
        for column, num_heads in enumerate(heads):
            for row, (name, title) in enumerate(CURVES):
                _panel(axes[row][column], results, found, num_heads, name)
                if column == 0:
                    axes[row][column].set_ylabel(title)
            axes[0][column].set_title(count_heads(num_heads))
            axes[1][column].set_xlabel("epoch")
            axes[1][column].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _stretch(axes[0][0])
        legend(figure, found)
    return figure


def average(cells: list[Cell], name: str) -> dict[int, Summary]:
    """Summarise one measure per epoch, as far as at least half of the seeds trained.

    Args:
        cells: the seeds of one (mechanism, heads).
        name: which measure of an epoch.

    Returns:
        By epoch; an epoch with a value that is not finite is left out.
    """
    values: dict[int, list[float]] = {}
    for cell in cells:
        for record in cell.epochs:
            values.setdefault(record["epoch"], []).append(record[name])
    return {
        epoch: summarise(found)
        for epoch, found in sorted(values.items())
        if 2 * len(found) >= len(cells) and all(map(math.isfinite, found))
    }


def _panel(axes: Axes, results: Results, found: dict[str, Look], num_heads: int, name: str) -> None:
    """Draw the lines and bands of one measure at one number of heads."""
    scale = 100 if name.endswith("accuracy") else 1
    for mechanism, look in found.items():
        means = average(results.select(mechanism, num_heads), name)
        epochs = list(means)
        axes.plot(
            epochs,
            [scale * s.mean for s in means.values()],
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            linewidth=1.4,
            markersize=4,
            markevery=max(1, len(epochs) // 8),
        )
        known = {epoch: s for epoch, s in means.items() if s.sd is not None}
        axes.fill_between(
            list(known),
            [scale * s.low for s in known.values()],
            [scale * s.high for s in known.values()],
            color=look.colour,
            alpha=0.15,
            linewidth=0,
        )


def _stretch(axes: Axes) -> None:
    """Give a loss that falls by much a log scale, so that its end can be read."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    lowest, highest = axes.dataLim.minposy, axes.dataLim.ymax
    if highest < WIDE * lowest:
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(f"{axes.get_ylabel()} (log scale)")
