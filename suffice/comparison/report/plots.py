"""All figures of the report, with their titles and captions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from suffice.comparison.metrics import LARGEST, METRICS, Metric
from suffice.comparison.report.tables import drawn_ends, quality_floors, seconds, validation_floors
from suffice.comparison.results import Cell, Results
from suffice.comparison.scores import MIN_SEEDS
from suffice.comparison.sentence import count_heads, label
from suffice.comparison.verdict import Comparison, Verdict, cost_of
from suffice.errors import check_known
from suffice.utils.canvas import (
    BAND,
    FAINT,
    INK,
    PAGE,
    blank,
    legend,
    line_styles,
    panels_width,
    png,
    style,
)
from suffice.utils.files import write_atomic
from suffice.utils.statistics import Summary, summarise
from suffice.utils.timing import Times, summarise_times

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


def curves_of(metric: Metric) -> tuple[Curve, ...]:
    """Return what is drawn of each epoch: the loss, as the metric writes it, and the accuracy.

    An epoch records no other metric: these are known of the test rows alone.
    """
    return (PERPLEXITY if metric.kind == "perplexity" else LOSS, ACCURACY)


WIDE = 10  # a loss that falls by this factor is drawn on a log scale


def learning_curves(results: Results, metric: Metric = METRICS["accuracy"]) -> Figure:
    """Draw one column per number of heads, one line per mechanism."""
    from matplotlib.ticker import MaxNLocator

    heads = sorted({h for _, h in results.pairs()})
    styles = line_styles(name for name, _ in results.pairs())
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
            for panels, curve in zip(axes, curves_of(metric), strict=True):
                _panel(panels[column], results, styles, num_heads, curve)
                if column == 0:
                    panels[column].set_ylabel(curve.title)
            axes[0][column].set_title(count_heads(num_heads))
            axes[1][column].set_xlabel("epoch")
            axes[1][column].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _stretch(axes[0][0])
        for panels, curve in zip(axes, curves_of(metric), strict=True):
            floors = validation_floors(results, curve.name)
            for panel in panels:
                draw_floors(panel, {name: curve.shown(value) for name, value in floors.items()})
        legend(figure, styles)
    return figure


LABEL_BOX = {"facecolor": PAGE[0], "alpha": 0.7, "linewidth": 0, "pad": 0.5}
FAR = 0.4  # heights of the curves between them and a line that is told rather than drawn


def draw_floors(axes: Axes, floors: dict[str, float]) -> None:
    """Draw what learning nothing scores, as horizontal lines with their names.

    A line so far away that it would squeeze what is compared is told at the edge of the axes.
    """
    low, high = axes.get_ylim()
    near = _near(floors, low, high)
    for value in near.values():
        axes.axhline(value, color=FAINT[0], linewidth=1.0, linestyle=(0, (1, 2)), zorder=0.7)
    if near:
        room = 0.06 * (max(high, *near.values()) - min(low, *near.values()))
        axes.set_ylim(
            min([low, *(value - room for value in near.values())]),
            max([high, *(value + room for value in near.values())]),
        )
    low, high = axes.get_ylim()
    placed: list[float] = []
    for name, value in sorted(near.items(), key=lambda item: item[1]):
        crowded = any(abs(value - other) < 0.09 * (high - low) for other in placed)
        placed.append(value)
        axes.annotate(
            f"{name} {value:.3g}",
            (0.99 if not crowded else 0.6, value),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(0, 2),
            ha="right",
            color=FAINT[0],
            fontsize=8,
            bbox=LABEL_BOX,
        )
    for below in (True, False):
        far = {n: v for n, v in floors.items() if n not in near and (v < low) == below}
        if far:
            axes.annotate(
                ("below: " if below else "above: ") + _listed(far),
                (0.99, 0.0 if below else 1.0),
                xycoords="axes fraction",
                textcoords="offset points",
                xytext=(0, 3 if below else -3),
                ha="right",
                va="bottom" if below else "top",
                color=FAINT[0],
                fontsize=8,
            )


def _near(floors: dict[str, float], low: float, high: float) -> dict[str, float]:
    room = FAR * (high - low)
    return {name: value for name, value in floors.items() if low - room <= value <= high + room}


def _listed(floors: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in floors.items())


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


def _panel(
    axes: Axes, results: Results, styles: dict[str, LineStyle], num_heads: int, curve: Curve
) -> None:
    for mechanism, line_style in styles.items():
        cells = results.select(mechanism, num_heads)
        means = average(cells, curve.name)
        epochs = list(means)
        axes.plot(
            epochs,
            [curve.shown(s.mean) for s in means.values()],
            color=line_style.colour,
            linestyle=line_style.dash,
            marker=line_style.marker,
            linewidth=1.4,
            markersize=4,
            markevery=max(1, len(epochs) // 8),
        )
        if len(cells) < MIN_SEEDS:
            _single_seeds(axes, cells, curve, line_style)
            continue
        known = {epoch: s for epoch, s in means.items() if s.n >= MIN_SEEDS}
        axes.fill_between(
            list(known),
            [curve.shown(max(0.0, s.low)) for s in known.values()],
            [min(curve.highest, curve.shown(s.high)) for s in known.values()],
            color=line_style.colour,
            alpha=0.15,
            linewidth=0,
        )


def _single_seeds(axes: Axes, cells: list[Cell], curve: Curve, line_style: LineStyle) -> None:
    for cell in cells if len(cells) > 1 else ():
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


LINE = 48  # characters of a line below a figure of one column
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
    with style():
        figure, ((axes,),) = blank(1, 1, width=WIDTH, height=1.4 + 0.4 * max(1, len(shown)))
        for place, comparison in enumerate(shown):
            _interval(axes, place, comparison, styles[comparison.mechanism], verdict.metric.scale)
        margin = verdict.metric.scale * verdict.margin
        low, high = axes.get_xlim()
        low, high = min(low, -1.25 * margin), max(high, 0.4 * margin, 0.001 * verdict.metric.scale)
        axes.axvspan(-margin, high, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axvline(-margin, color=FAINT[0], linewidth=1.2, linestyle=(0, (4, 2)))
        axes.axvline(0, color=FAINT[0], linewidth=1.0)
        axes.set_xlim(low, high)
        floors = _floors_below(axes, shown, results, verdict)
        figure.set_figheight(figure.get_figheight() + 0.17 * len(floors))
        heads = {c.num_heads for c in shown}
        names = [c.mechanism if len(heads) == 1 else label(c.mechanism, c.num_heads) for c in shown]
        axes.set_yticks(range(len(shown)), names)
        if len(heads) == 1 and results.external is None:
            axes.set_title(count_heads(*heads))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        lines = (
            f"{verdict.metric.title}:",
            f"difference to {verdict.baseline}"
            + (f", {verdict.metric.unit}" if verdict.metric.unit else ""),
            f"(right is better; dashed: margin, -{verdict.metric.margin(verdict.margin)})",
            *floors,
        )
        axes.set_xlabel("\n".join(lines))
    return figure


def _floors_below(
    axes: Axes, shown: list[Comparison], results: Results, verdict: Verdict
) -> list[str]:
    floors = quality_floors(results, verdict)
    low, high = axes.get_xlim()
    near_by: dict[str, float] = {}
    far: dict[str, float] = {}
    for heads, base in verdict.qualities.items():
        places = [place for place, c in enumerate(shown) if c.num_heads == heads]
        gaps = {name: verdict.metric.scale * (value - base.mean) for name, value in floors.items()}
        near = _near(gaps, low, high) if places else {}
        for gap in near.values():
            ends = (min(places) - 0.45, max(places) + 0.45)
            axes.vlines(gap, *ends, color=FAINT[0], linewidth=1.0, linestyle=(0, (1, 2)))
            low = min(low, gap - 0.05 * (high - low))
        near_by |= near
        far |= {name: gap for name, gap in gaps.items() if name not in near}
    axes.set_xlim(low, high)
    gaps_by_place = {"dotted": near_by, "left of here": far}
    lines = [f"{where}: {_listed(gaps)}" for where, gaps in gaps_by_place.items() if gaps]
    return [part for line in lines for part in wrap(line, LINE)]


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


def latency_bars(results: Results, verdict: Verdict) -> Figure:
    """Draw one bar per timed mechanism, one panel per number of heads.

    The bar is the median over rounds of the ratio to the baseline in the same round, the whisker
    reaches from the first to the third quartile. Without the baseline's times it is the time.
    """
    pairs = [pair for pair in results.pairs() if results.speed(*pair) is not None]
    relative = all(results.latency_ratios(*pair) is not None for pair in pairs)
    heads = sorted({num_heads for _, num_heads in pairs})
    bars: dict[int, dict[str, tuple[Times, str]]] = {number: {} for number in heads}
    for name, number in pairs:
        samples = results.speed(name, number).latency
        text = seconds(summarise_times(samples).median)
        if relative:
            bar = summarise_times(results.latency_ratios(name, number))
            text = f"{bar.median:.2f}x  ({text})"
        else:
            bar = summarise_times([1e3 * sample for sample in samples])
        bars[number][name] = bar, text
    styles = line_styles(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            max(1, len(heads)),
            1,
            width=WIDTH,
            height=0.9 + sum(0.5 + 0.36 * len(of_heads) for of_heads in bars.values()),
            sharex="all",
        )
        for (panel,), (num_heads, of_heads) in zip(axes, bars.items(), strict=False):
            _panel_latency(panel, of_heads, styles)
            panel.set_title(count_heads(num_heads))
        ends = [bar.high for of_heads in bars.values() for bar, _ in of_heads.values()]
        axes[-1][0].set_xlim(0, 1.4 * max(ends, default=1.0))
        title = f"latency of one batch, {verdict.baseline} = 1" if relative else None
        axes[-1][0].set_xlabel(title or "latency of one batch, ms")
    return figure


def _panel_latency(
    axes: Axes, bars: dict[str, tuple[Times, str]], styles: dict[str, LineStyle]
) -> None:
    places = range(len(bars))
    times = [bar for bar, _ in bars.values()]
    medians = [bar.median for bar in times]
    below = [bar.median - bar.low for bar in times]
    above = [bar.high - bar.median for bar in times]
    axes.barh(places, medians, height=0.62, color=[styles[name].colour for name in bars])
    axes.errorbar(medians, places, xerr=[below, above], fmt="none", ecolor=INK[0], elinewidth=1.2)
    for place, (bar, text) in enumerate(bars.values()):
        axes.annotate(
            text, (bar.high, place), textcoords="offset points", xytext=(6, 0), va="center"
        )
    axes.set_yticks(places, list(bars))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


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
    points: dict[str, tuple[float, float]],
    colours: list[str],
    lines: list[tuple[tuple[float, float], tuple[float, float]]],
) -> None:
    """Write each point's name next to it.

    Every place of PLACES is tried; the first that is free and inside the axes is taken, the one
    with the least overlap if none is.
    """
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
            worst.append((_cover(box, taken) + _outside(box, axes), number))
        offset, horizontal, vertical = PLACES[min(worst)[1]]
        text.set(position=offset, ha=horizontal, va=vertical)
        taken.append(text.get_window_extent())


def _around(axes: Axes, start: tuple[float, float], end: tuple[float, float], room: float) -> Bbox:
    from matplotlib.transforms import Bbox

    corners = axes.transData.transform([start, end])
    low, high = corners.min(axis=0) - room, corners.max(axis=0) + room
    return Bbox.from_extents(*low, *high)


def _cover(box: Bbox, taken: list[Bbox]) -> float:
    from matplotlib.transforms import Bbox

    shared = [Bbox.intersection(box, other) for other in taken]
    return sum(part.width * part.height for part in shared if part is not None)


def _outside(box: Bbox, axes: Axes) -> float:
    from matplotlib.transforms import Bbox

    inside = Bbox.intersection(box, axes.get_window_extent())
    area = 0.0 if inside is None else inside.width * inside.height
    return box.width * box.height - area


AXES = {  # title, and what a cost is divided by
    "flops": ("attention FLOPs per sample, millions", 1e6),
    "latency": ("latency of one batch, ms", 1e-3),
    "parameters": ("model parameters, thousands", 1e3),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """Cost and quality of one (mechanism, heads): mean and ends of the interval as drawn."""

    mechanism: str
    num_heads: int
    cost: float
    low: float
    mean: float
    high: float


def points(results: Results, verdict: Verdict) -> list[Point]:
    """Return the points of quality over the cost that the verdict orders by, by heads."""
    drawn = []
    for name, heads in sorted(results.pairs(), key=lambda pair: pair[1]):
        low, mean, high = drawn_ends(verdict.quality(name, heads), verdict.metric)
        cost = cost_of(results, name, heads, verdict.by).value
        drawn.append(
            Point(mechanism=name, num_heads=heads, cost=cost, low=low, mean=mean, high=high)
        )
    return drawn


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
        scaled = replace(point, cost=point.cost / unit)
        by_heads.setdefault(point.num_heads, []).append(scaled)
    styles = line_styles(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            1, len(by_heads), width=panels_width(len(by_heads)), height=4.0, sharey="all"
        )
        for panel, (num_heads, shown) in zip(axes[0], by_heads.items(), strict=True):
            _panel_tradeoff(panel, shown, styles, verdict)
            panel.set_title(count_heads(num_heads))
            panel.set_xlabel(title)
        axes[0][0].set_ylabel(verdict.metric.axis)
        floors = quality_floors(results, verdict)
        for panel in axes[0]:
            draw_floors(panel, {n: verdict.metric.drawn(value) for n, value in floors.items()})
        for panel, shown in zip(axes[0], by_heads.values(), strict=True):
            _label_points(panel, shown, styles, verdict)
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


def _panel_tradeoff(
    axes: Axes, shown: list[Point], styles: dict[str, LineStyle], verdict: Verdict
) -> None:
    if (base := verdict.qualities.get(shown[0].num_heads)) is not None:
        top, bottom = map(verdict.metric.drawn, (base.mean, base.mean - verdict.margin))
        axes.axhspan(bottom, top, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axhline(top, color=FAINT[0], linewidth=1.0, zorder=0.6)
    costs = [point.cost for point in shown]
    room = 0.25 * (max(costs) - min(costs) or max(costs) or 1.0)
    left, right = max(0.0, min(costs) - room), max(costs) + room
    for point, x in zip(shown, side_by_side(costs, right - left), strict=True):
        line_style = styles[point.mechanism]
        axes.errorbar(
            x,
            point.mean,
            yerr=[[point.mean - point.low], [point.high - point.mean]],
            color=line_style.colour,
            marker=line_style.marker,
        )
    axes.set_xlim(left, right)
    axes.margins(y=0.12)


def _label_points(
    axes: Axes, shown: list[Point], styles: dict[str, LineStyle], verdict: Verdict
) -> None:
    left, right = axes.get_xlim()
    places = side_by_side([point.cost for point in shown], right - left)
    bars = [((x, p.low), (x, p.high)) for p, x in zip(shown, places, strict=True)]
    if (base := verdict.qualities.get(shown[0].num_heads)) is not None:
        height = verdict.metric.drawn(base.mean)
        bars.append(((left, height), (right, height)))
    named = {p.mechanism: (x, p.mean) for p, x in zip(shown, places, strict=True)}
    place_labels(axes, named, [styles[point.mechanism].colour for point in shown], bars)


@dataclass(frozen=True, kw_only=True)
class Plot:
    title: str
    caption: str
    draw: Callable[[Results, Verdict], Figure]
    shown: Callable[[Results, Verdict], bool] = lambda _results, _verdict: True


FIGURES = {
    "differences": Plot(
        title="Difference to the baseline",
        caption="Mean paired difference. The interval is the one used for the verdict, adjusted "
        "for multiple candidates. A mechanism suffices when all of it is in the shaded part. "
        "Dotted: a model that reads nothing. Below three seeds there is no interval; the strokes "
        "are single seeds.",
        draw=difference_plot,
        shown=lambda _results, verdict: any(c.difference for c in verdict.comparisons),
    ),
    "tradeoff": Plot(
        title="Cost against quality",
        caption="Mean over seeds of what the verdict is about; the bars are 95% intervals of each "
        "mean by itself. The line is the baseline, the band on its worse side the margin; dotted: "
        "a model that reads nothing. Points of equal cost stand side by side. The verdict rests "
        "on the paired differences above, not on whether bars reach the band.",
        draw=tradeoff,
        shown=lambda results, _verdict: results.external is None,
    ),
    "curves": Plot(
        title="Learning curves",
        caption="Mean over seeds and its 95% interval, as far as at least half of the seeds "
        "trained; below three seeds each seed is a thin line. Dotted: a model that "
        "reads nothing, on the validation rows. Other metrics are computed on the test rows, once.",
        draw=lambda results, verdict: learning_curves(results, verdict.metric),
        shown=lambda results, _verdict: any(cell.epochs for cell in results.cells),
    ),
    "latency": Plot(
        title="Latency",
        caption="Forward of one batch as a multiple of the baseline's at equal heads in the same "
        "round: median over rounds and quartiles; in brackets the median time. Whiskers that reach "
        "past 1 on both sides: the rounds disagree on which is faster, often because the machine "
        "was busy.",
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
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        write_atomic(paths[-1], png(figure))
    return paths
