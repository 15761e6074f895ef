"""All figures of the report, with their titles and captions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from suffice.comparison.metrics import LARGEST, METRICS, Metric
from suffice.comparison.report.tables import quality_floors
from suffice.comparison.results import Cell, Results
from suffice.comparison.scores import MIN_SEEDS
from suffice.comparison.sentence import count_heads, label
from suffice.comparison.verdict import Comparison, Verdict, cost_of
from suffice.errors import check_known
from suffice.utils.canvas import BAND, FAINT, blank, legend, line_styles, panels_width, png, style
from suffice.utils.files import write_atomic
from suffice.utils.statistics import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from suffice.utils.canvas import LineStyle


@dataclass(frozen=True, kw_only=True)
class Curve:
    name: str  # name of the record
    title: str  # title of the axis
    shown: Callable[[float], float] = float  # function from a recorded value to the drawn one
    highest: float = math.inf  # largest value that may be drawn


LOSS = Curve(name="validation_loss", title="validation loss")
ACCURACY = Curve(
    name="validation_accuracy",
    title="validation accuracy, %",
    shown=lambda value: 100.0 * value,
    highest=100.0,
)
PERPLEXITY = Curve(
    name="validation_loss",
    title="validation perplexity",
    shown=lambda value: math.exp(min(value, LARGEST)),
)
WIDE = 10  # a loss that falls by this factor is drawn on a log scale


def learning_curves(results: Results, metric: Metric = METRICS["accuracy"]) -> Figure:
    """Draw loss and accuracy by epoch: one column per number of heads, one line per mechanism."""
    from matplotlib.ticker import MaxNLocator

    # an epoch records no other metric: these are known of the test rows alone
    curves = (PERPLEXITY if metric.kind == "perplexity" else LOSS, ACCURACY)
    heads = sorted({h for _, h in results.pairs()})
    styles = line_styles(name for name, _ in results.pairs())
    with style():
        width = panels_width(len(heads))
        figure, axes = blank(2, len(heads), width=width, height=6.0, sharex="all", sharey="row")
        for panels, curve in zip(axes, curves, strict=True):
            panels[0].set_ylabel(curve.title)
            for panel, num_heads in zip(panels, heads, strict=True):
                for mechanism, line_style in styles.items():
                    _curve(panel, results.select(mechanism, num_heads), curve, line_style)
        for above, below, num_heads in zip(*axes, heads, strict=True):
            above.set_title(count_heads(num_heads))
            below.set_xlabel("epoch")
            below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _stretch(axes[0][0])
        legend(figure, styles)
    return figure


def average(cells: list[Cell], name: str) -> dict[int, Summary]:
    """Summarise one measure per epoch, as far as at least half of the seeds trained.

    Returns:
        By epoch; an epoch with a value that is not finite is left out.
    """
    values: dict[int, list[float]] = {}
    for cell in cells:
        for record in cell.epochs:
            values.setdefault(record["epoch"], []).append(record[name])
    return {
        epoch: summarise(of_seeds)
        for epoch, of_seeds in sorted(values.items())
        if 2 * len(of_seeds) >= len(cells) and all(map(math.isfinite, of_seeds))
    }


def _curve(axes: Axes, cells: list[Cell], curve: Curve, line_style: LineStyle) -> None:
    means = average(cells, curve.name)
    axes.plot(
        list(means),
        [curve.shown(summary.mean) for summary in means.values()],
        color=line_style.colour,
        linestyle=line_style.dash,
        marker=line_style.marker,
        linewidth=1.4,
        markersize=4,
        markevery=max(1, len(means) // 8),
    )
    if len(cells) >= MIN_SEEDS:
        known = {epoch: summary for epoch, summary in means.items() if summary.n >= MIN_SEEDS}
        axes.fill_between(
            list(known),
            [curve.shown(max(0.0, summary.low)) for summary in known.values()],
            [min(curve.highest, curve.shown(summary.high)) for summary in known.values()],
            color=line_style.colour,
            alpha=0.15,
            linewidth=0,
        )
    elif len(cells) > 1:
        for cell in cells:
            finite = [record for record in cell.epochs if math.isfinite(record[curve.name])]
            axes.plot(
                [record["epoch"] for record in finite],
                [curve.shown(record[curve.name]) for record in finite],
                color=line_style.colour,
                linewidth=0.7,
                alpha=0.6,
            )


def _stretch(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    lowest, highest = axes.dataLim.minposy, axes.dataLim.ymax
    if highest < WIDE * lowest:
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(f"{axes.get_ylabel()} (log scale)")


WIDTH = panels_width(1)  # inches of a figure of one column: read on a telephone, too


def difference_plot(results: Results, verdict: Verdict) -> Figure:
    """Draw the mean paired difference of the metric with the interval that decides.

    A mechanism suffices when its whole interval lies in the shaded part, right of minus the
    margin. Below three seeds there is no interval, and each seed is a point.
    """
    shown = sorted(
        (c for c in verdict.comparisons if c.difference is not None), key=lambda c: c.num_heads
    )
    styles = line_styles(name for name, _ in results.pairs())
    metric, heads = verdict.metric, {c.num_heads for c in shown}
    height = 1.4 + 0.4 * max(1, len(shown))
    with style():
        figure, ((axes,),) = blank(1, 1, width=WIDTH, height=height)
        for place, comparison in enumerate(shown):
            _interval(axes, place, comparison, styles[comparison.mechanism], metric.scale)
        margin = metric.scale * verdict.margin
        low, high = axes.get_xlim()
        low, high = min(low, -1.25 * margin), max(high, 0.4 * margin, 0.001 * metric.scale)
        axes.axvspan(-margin, high, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axvline(-margin, color=FAINT[0], linewidth=1.2, linestyle=(0, (4, 2)))
        axes.axvline(0, color=FAINT[0], linewidth=1.0)
        axes.set_xlim(low, high)
        names = [c.mechanism if len(heads) == 1 else label(c.mechanism, c.num_heads) for c in shown]
        axes.set_yticks(range(len(shown)), names)
        if len(heads) == 1 and results.external is None:
            axes.set_title(count_heads(*heads))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        lines = (
            f"{metric.title}:",
            f"difference to {verdict.baseline}" + (f", {metric.unit}" if metric.unit else ""),
            f"(right is better; dashed: margin, -{metric.margin(verdict.margin)})",
        )
        axes.set_xlabel("\n".join(lines))
    return figure


def _interval(
    axes: Axes, place: int, comparison: Comparison, line_style: LineStyle, scale: float
) -> None:
    difference = comparison.difference
    half = 0.0 if difference.low is None else scale * (difference.high - difference.mean)
    if difference.low is None and difference.n > 1:
        each = [scale * value for value in comparison.pairing.differences]
        axes.plot(each, [place] * len(each), color=line_style.colour, marker="|", linestyle="none")
    axes.errorbar(
        scale * difference.mean,
        place,
        xerr=half,
        color=line_style.colour,
        marker=line_style.marker,
        linewidth=1.8,
        markersize=7,
    )


Place = tuple[float, float]

# where a name may stand, best first: offset in points, horizontal and vertical alignment
PLACES = (
    ((7, 5), "left", "bottom"),
    ((-7, 5), "right", "bottom"),
    ((7, -5), "left", "top"),
    ((-7, -5), "right", "top"),
    *(
        ((side * 7, sign * away), "left" if side > 0 else "right", "bottom" if sign > 0 else "top")
        for away in range(16, 120, 11)
        for sign in (1, -1)
        for side in (1, -1)
    ),
)


def place_labels(
    axes: Axes,
    points: dict[str, Place],
    colours: list[str],
    lines: list[tuple[Place, Place]],
) -> None:
    """Write each point's name at the first of PLACES that is free, else at the least covered."""
    figure = axes.figure
    figure.draw_without_rendering()
    taken = [_around(axes, point, point, 6) for point in points.values()]
    taken += [_around(axes, start, end, 2) for start, end in lines]
    for (name, point), colour in zip(points.items(), colours, strict=True):
        text = axes.annotate(
            name, point, textcoords="offset points", xytext=(0, 0), color=colour, fontsize=8.5
        )
        worst = []
        for number, (offset, horizontal, vertical) in enumerate(PLACES):
            text.set(position=offset, ha=horizontal, va=vertical)
            box = text.get_window_extent()
            outside = box.width * box.height - _overlap(box, axes.get_window_extent())
            worst.append((outside + sum(_overlap(box, other) for other in taken), number))
        offset, horizontal, vertical = PLACES[min(worst)[1]]
        text.set(position=offset, ha=horizontal, va=vertical)
        taken.append(text.get_window_extent())


def _around(axes: Axes, start: Place, end: Place, room: float) -> Bbox:
    from matplotlib.transforms import Bbox

    corners = axes.transData.transform([start, end])
    low, high = corners.min(axis=0) - room, corners.max(axis=0) + room
    return Bbox.from_extents(*low, *high)


def _overlap(box: Bbox, other: Bbox) -> float:
    shared = box.intersection(box, other)
    return 0.0 if shared is None else shared.width * shared.height


AXES = {  # title, and what a cost is divided by
    "flops": ("attention FLOPs per sample, millions", 1e6),
    "latency": ("latency of one batch, ms", 1e-3),
    "parameters": ("model parameters, thousands", 1e3),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """Cost and quality of one (mechanism, heads)."""

    mechanism: str
    num_heads: int
    cost: float
    low: float  # ends of the interval, or the mean where there is none
    mean: float
    high: float


def points(results: Results, verdict: Verdict) -> list[Point]:
    """Return points of drawn quality over the verdict's cost, in order of heads."""
    drawn = []
    for name, heads in sorted(results.pairs(), key=lambda pair: pair[1]):
        quality = verdict.quality(name, heads)
        ends = (quality.mean if end is None else end for end in (quality.low, quality.high))
        low, high = sorted(map(verdict.metric.drawn, ends))
        mean = verdict.metric.drawn(quality.mean)
        cost = cost_of(results, name, heads, verdict.by).value
        drawn.append(
            Point(mechanism=name, num_heads=heads, cost=cost, low=low, mean=mean, high=high)
        )
    return drawn


LINE = 48  # characters of a line below a panel


def tradeoff(results: Results, verdict: Verdict) -> Figure:
    """Draw the verdict's metric over cost, one column per number of heads.

    The band reaches from the baseline's mean by the margin to the worse side. The bars are the
    95% intervals of each mean by itself; the verdict rests on paired differences, whose intervals
    are narrower when seeds move together.
    """
    check_known("cost", verdict.by, AXES)
    title, unit = AXES[verdict.by]
    by_heads: dict[int, list[Point]] = {}
    for point in points(results, verdict):
        by_heads.setdefault(point.num_heads, []).append(replace(point, cost=point.cost / unit))
    styles = line_styles(name for name, _ in results.pairs())
    floors = quality_floors(results, verdict)
    values = ", ".join(f"{name} {verdict.metric.drawn(v):.3g}" for name, v in floors.items())
    below = wrap(f"learning nothing: {values}", LINE) if floors else []
    with style():
        width, height = panels_width(len(by_heads)), 4.0 + 0.17 * len(below)
        figure, axes = blank(1, len(by_heads), width=width, height=height, sharey="all")
        named = []
        for panel, (num_heads, shown) in zip(axes[0], by_heads.items(), strict=True):
            named.append(_draw_points(panel, shown, styles, verdict))
            panel.set_title(count_heads(num_heads))
            panel.set_xlabel(title)
        axes[0][0].set_ylabel(verdict.metric.axis)
        axes[0][0].set_xlabel("\n".join([title, *below]))
        for panel, (names, bars) in zip(axes[0], named, strict=True):  # limits are known by now
            place_labels(panel, names, [styles[name].colour for name in names], bars)
    return figure


def side_by_side(costs: list[float], width: float) -> list[float]:
    """Return where points are drawn, so that those of equal cost do not cover each other.

    Example:
        >>> side_by_side([2.0, 5.0, 2.0], 10.0)
        [1.8, 5.0, 2.2]
    """
    places = list(costs)
    order = sorted(range(len(costs)), key=costs.__getitem__)
    clusters: list[list[int]] = []
    for number in order:
        if clusters and costs[number] - costs[clusters[-1][0]] < NEAR * width:
            clusters[-1].append(number)
        else:
            clusters.append([number])
    for cluster in clusters:
        for place, number in enumerate(cluster):
            shift = place - (len(cluster) - 1) / 2
            places[number] = round(costs[number] + 2 * NEAR * width * shift, 12)
    return places


NEAR = 0.02  # widths of the axis between points that would cover each other


def _draw_points(
    axes: Axes, shown: list[Point], styles: dict[str, LineStyle], verdict: Verdict
) -> tuple[dict[str, Place], list[tuple[Place, Place]]]:
    """Draw points with their intervals; return each one's place, and all lines drawn."""
    costs = [point.cost for point in shown]
    room = 0.25 * (max(costs) - min(costs) or max(costs) or 1.0)
    left, right = max(0.0, min(costs) - room), max(costs) + room
    lines = []
    if (base := verdict.qualities.get(shown[0].num_heads)) is not None:
        top, bottom = map(verdict.metric.drawn, (base.mean, base.mean - verdict.margin))
        axes.axhspan(bottom, top, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axhline(top, color=FAINT[0], linewidth=1.0, zorder=0.6)
        lines.append(((left, top), (right, top)))
    places = {}
    for point, x in zip(shown, side_by_side(costs, right - left), strict=True):
        axes.errorbar(
            x,
            point.mean,
            yerr=[[point.mean - point.low], [point.high - point.mean]],
            color=styles[point.mechanism].colour,
            marker=styles[point.mechanism].marker,
        )
        places[point.mechanism] = x, point.mean
        lines.append(((x, point.low), (x, point.high)))
    axes.set_xlim(left, right)
    axes.margins(y=0.12)
    return places, lines


@dataclass(frozen=True, kw_only=True)
class Plot:
    title: str
    caption: str
    draw: Callable[[Results, Verdict], Figure]
    shown: Callable[[Results, Verdict], bool]  # whether the results have its numbers


FIGURES = {
    "differences": Plot(
        title="Difference to the baseline",
        caption="Mean paired difference. The interval is the one used for the verdict, adjusted "
        "for multiple candidates. A mechanism suffices when all of it is in the shaded part. "
        "Below three seeds there is no interval; the strokes are single seeds.",
        draw=difference_plot,
        shown=lambda _results, verdict: any(c.difference for c in verdict.comparisons),
    ),
    "tradeoff": Plot(
        title="Cost against quality",
        caption="Mean over seeds of the verdict's metric; the bars are 95% intervals of each mean "
        "by itself. The line is the baseline, the band on its worse side the margin. Points of "
        "equal cost stand side by side. The verdict rests on the paired differences above, not on "
        "whether bars reach the band.",
        draw=tradeoff,
        shown=lambda results, _verdict: results.external is None,
    ),
    "curves": Plot(
        title="Learning curves",
        caption="Mean over seeds and its 95% interval, as far as at least half of the seeds "
        "trained; below three seeds each seed is a thin line. Other metrics are computed on the "
        "test rows, once.",
        draw=lambda results, verdict: learning_curves(results, verdict.metric),
        shown=lambda results, _verdict: any(cell.epochs for cell in results.cells),
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
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        write_atomic(paths[-1], png(figure))
    return paths
