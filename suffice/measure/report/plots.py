"""All figures of the report, with their titles and captions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.errors import unknown
from suffice.files import write_atomic
from suffice.measure.metrics import Metric
from suffice.measure.report.canvas import (
    BAND,
    FAINT,
    INK,
    blank,
    legend,
    line_styles,
    panels_width,
    png,
    style,
)
from suffice.measure.report.tables import Row, build_rows, seconds
from suffice.measure.results import Cell, Results
from suffice.measure.sentence import count_heads, label
from suffice.measure.statistics import Summary, summarise
from suffice.measure.verdict import MIN_SEEDS, Comparison, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from suffice.measure.report.canvas import LineStyle


CURVES = (
    ("validation_loss", "validation loss"),
    ("validation_accuracy", "validation accuracy, %"),
)

WIDE = 10  # a loss that falls by this factor is drawn on a log scale


def learning_curves(results: Results) -> Figure:
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
            for row, (name, title) in enumerate(CURVES):
                _panel(axes[row][column], results, styles, num_heads, name)
                if column == 0:
                    axes[row][column].set_ylabel(title)
            axes[0][column].set_title(count_heads(num_heads))
            axes[1][column].set_xlabel("epoch")
            axes[1][column].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
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


def _panel(
    axes: Axes, results: Results, styles: dict[str, LineStyle], num_heads: int, name: str
) -> None:
    """Draw the lines and bands of one measure at one number of heads."""
    scale = 100 if name.endswith("accuracy") else 1
    for mechanism, line_style in styles.items():
        cells = results.select(mechanism, num_heads)
        means = average(cells, name)
        epochs = list(means)
        axes.plot(
            epochs,
            [scale * s.mean for s in means.values()],
            color=line_style.colour,
            linestyle=line_style.dash,
            marker=line_style.marker,
            linewidth=1.4,
            markersize=4,
            markevery=max(1, len(epochs) // 8),
        )
        if len(cells) < MIN_SEEDS:
            _single_seeds(axes, cells, name, scale, line_style)
            continue
        known = {epoch: s for epoch, s in means.items() if s.n >= MIN_SEEDS}
        highest = 1.0 if scale != 1 else math.inf
        axes.fill_between(
            list(known),
            [scale * max(0.0, s.low) for s in known.values()],
            [scale * min(highest, s.high) for s in known.values()],
            color=line_style.colour,
            alpha=0.15,
            linewidth=0,
        )


def _single_seeds(
    axes: Axes, cells: list[Cell], name: str, scale: float, line_style: LineStyle
) -> None:
    """Draw the line of each of a few seeds, thinner than their mean."""
    for cell in cells if len(cells) > 1 else ():
        finite = [record for record in cell.epochs if math.isfinite(record[name])]
        axes.plot(
            [record["epoch"] for record in finite],
            [scale * record[name] for record in finite],
            color=line_style.colour,
            linewidth=0.7,
            alpha=0.6,
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
        figure, ((axes,),) = blank(1, 1, width=9.0, height=1.3 + 0.4 * max(1, len(shown)))
        for place, comparison in enumerate(shown):
            _interval(axes, place, comparison, styles[comparison.mechanism], verdict.metric.scale)
        margin = verdict.metric.scale * verdict.margin
        low, high = axes.get_xlim()
        low, high = min(low, -1.25 * margin), max(high, 0.4 * margin, 0.001 * verdict.metric.scale)
        axes.axvspan(-margin, high, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axvline(-margin, color=FAINT[0], linewidth=1.2, linestyle=(0, (4, 2)))
        axes.axvline(0, color=FAINT[0], linewidth=1.0)
        axes.set_xlim(low, high)
        axes.set_yticks(range(len(shown)), [label(c.mechanism, c.num_heads) for c in shown])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(
            f"{verdict.metric.title} against {verdict.baseline}'s at equal heads, "
            f"{verdict.metric.unit}, right is better "
            f"(dashed: margin, -{verdict.metric.margin(verdict.margin)})"
        )
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


def latency_bars(results: Results, verdict: Verdict) -> Figure:
    """Draw one bar per timed mechanism, one panel per number of heads.

    The bar is the median over rounds of the ratio to the baseline in the same round, the whisker
    reaches from the first to the third quartile. Without the baseline's times it is the time.
    """
    rows = [row for row in build_rows(results, verdict) if row.latency is not None]
    relative = all(row.latency_ratios is not None for row in rows)
    heads = sorted({row.num_heads for row in rows})
    styles = line_styles(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            max(1, len(heads)),
            1,
            width=9.0,
            height=0.9 + sum(0.5 + 0.36 * [row.num_heads for row in rows].count(h) for h in heads),
            sharex="all",
        )
        for (panel,), num_heads in zip(axes, heads, strict=False):
            of_heads = [row for row in rows if row.num_heads == num_heads]
            _panel_latency(panel, of_heads, styles, relative=relative)
            panel.set_title(count_heads(num_heads))
        highest = max((_bar(row, relative=relative)[2] for row in rows), default=1.0)
        axes[-1][0].set_xlim(0, 1.4 * highest)
        title = f"latency of one batch, {verdict.baseline} = 1" if relative else None
        axes[-1][0].set_xlabel(title or "latency of one batch, ms")
    return figure


def _bar(row: Row, *, relative: bool) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile, of the ratio or in ms."""
    times = row.latency_ratios if relative else row.latency
    scale = 1.0 if relative else 1e3
    return scale * times.low, scale * times.median, scale * times.high


def _panel_latency(
    axes: Axes, rows: list[Row], styles: dict[str, LineStyle], *, relative: bool
) -> None:
    places = range(len(rows))
    bars = [_bar(row, relative=relative) for row in rows]
    medians = [median for _, median, _ in bars]
    below = [median - low for low, median, _ in bars]
    above = [high - median for _, median, high in bars]
    axes.barh(places, medians, height=0.62, color=[styles[row.mechanism].colour for row in rows])
    axes.errorbar(medians, places, xerr=[below, above], fmt="none", ecolor=INK[0], elinewidth=1.2)
    for place, row, (_, median, high) in zip(places, rows, bars, strict=True):
        time = seconds(row.latency.median)
        axes.annotate(
            f"{median:.2f}x  ({time})" if relative else time,
            (high, place),
            textcoords="offset points",
            xytext=(6, 0),
            va="center",
        )
    axes.set_yticks(places, [row.mechanism for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


# where a name may stand, best first: offset in points, horizontal and vertical alignment
PLACES = (
    ((7, 5), "left", "bottom"),
    ((-7, 5), "right", "bottom"),
    ((7, -5), "left", "top"),
    ((-7, -5), "right", "top"),
    ((7, 16), "left", "bottom"),
    ((-7, 16), "right", "bottom"),
    ((7, -16), "left", "top"),
    ((-7, -16), "right", "top"),
)


def place_labels(
    axes: Axes,
    points: dict[str, tuple[float, float]],
    colours: list[str],
    lines: list[tuple[tuple[float, float], tuple[float, float]]],
) -> None:
    """Write each point's name beside it.

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
    """Return the pixels between two points and some room around them."""
    from matplotlib.transforms import Bbox

    corners = axes.transData.transform([start, end])
    low, high = corners.min(axis=0) - room, corners.max(axis=0) + room
    return Bbox.from_extents(*low, *high)


def _cover(box: Bbox, taken: list[Bbox]) -> float:
    from matplotlib.transforms import Bbox

    shared = [Bbox.intersection(box, other) for other in taken]
    return sum(part.width * part.height for part in shared if part is not None)


def _outside(box: Bbox, axes: Axes) -> float:
    """Return by how many pixels a box extends beyond the axes on each side."""
    from matplotlib.transforms import Bbox

    inside = Bbox.intersection(box, axes.get_window_extent())
    area = 0.0 if inside is None else inside.width * inside.height
    return box.width * box.height - area


AXES = {
    "flops": ("attention FLOPs per sample, millions", lambda row: row.flops / 1e6),
    "latency": (
        "latency of one batch, ms",
        lambda row: None if row.latency is None else 1e3 * row.latency.median,
    ),
    "parameters": ("model parameters, thousands", lambda row: row.parameters_model / 1e3),
}


def tradeoff(results: Results, verdict: Verdict) -> Figure:
    """Draw the verdict's metric over cost, one column per number of heads.

    The band reaches from the baseline's mean by the margin to the worse side. The bars are the
    95% intervals of each mean by itself; the verdict rests on paired differences, whose intervals
    are narrower when seeds move together.
    """
    if verdict.by not in AXES:
        raise unknown("cost", verdict.by, AXES)
    title, value = AXES[verdict.by]
    rows = [row for row in build_rows(results, verdict) if value(row) is not None]
    heads = sorted({row.num_heads for row in rows})
    styles = line_styles(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            1, len(heads), width=panels_width(len(heads)), height=4.0, sharey="all"
        )
        for panel, num_heads in zip(axes[0], heads, strict=True):
            shown = [(row, value(row)) for row in rows if row.num_heads == num_heads]
            _panel_tradeoff(panel, shown, styles, verdict)
            panel.set_title(count_heads(num_heads))
            panel.set_xlabel(title)
        axes[0][0].set_ylabel(axis_name(verdict.metric))
        for panel, num_heads in zip(axes[0], heads, strict=True):
            shown = [(row, value(row)) for row in rows if row.num_heads == num_heads]
            _label_points(panel, shown, styles, verdict.metric)
    return figure


def _panel_tradeoff(
    axes: Axes, shown: list[tuple[Row, float]], styles: dict[str, LineStyle], verdict: Verdict
) -> None:
    """Draw the points of one number of heads and the baseline's band."""
    metric = verdict.metric
    base = next((row.quality for row, _ in shown if row.comparison is None), None)
    if base is not None:
        top, bottom = (metric.drawn(base.mean - lost) for lost in (0.0, verdict.margin))
        axes.axhspan(bottom, top, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axhline(top, color=FAINT[0], linewidth=1.0, zorder=0.6)
    for row, x in shown:
        low, mean, high = drawn_ends(row.quality, metric)
        line_style = styles[row.mechanism]
        axes.errorbar(
            x,
            mean,
            yerr=[[mean - low], [high - mean]],
            color=line_style.colour,
            marker=line_style.marker,
        )
    costs = [x for _, x in shown]
    room = 0.25 * (max(costs) - min(costs) or max(costs) or 1.0)
    axes.set_xlim(max(0.0, min(costs) - room), max(costs) + room)
    axes.margins(y=0.12)


def _label_points(
    axes: Axes, shown: list[tuple[Row, float]], styles: dict[str, LineStyle], metric: Metric
) -> None:
    ends = [(x, drawn_ends(row.quality, metric)) for row, x in shown]
    bars = [((x, low), (x, high)) for x, (low, _, high) in ends]
    base = next((row.quality for row, _ in shown if row.comparison is None), None)
    if base is not None:
        low, high = axes.get_xlim()
        level = metric.drawn(base.mean)
        bars.append(((low, level), (high, level)))
    points = {row.mechanism: (x, metric.drawn(row.quality.mean)) for row, x in shown}
    place_labels(axes, points, [styles[row.mechanism].colour for row, _ in shown], bars)


def drawn_ends(quality: Summary, metric: Metric) -> tuple[float, float, float]:
    """Return a mean between the ends of its interval as figures draw them, rising.

    Few seeds have no interval: all three are the mean.
    """
    mean = metric.drawn(quality.mean)
    if quality.low is None:
        return mean, mean, mean
    low, high = sorted((metric.drawn(quality.low), metric.drawn(quality.high)))
    return low, mean, high


def axis_name(metric: Metric) -> str:
    """Return what the axis of a metric is called.

    Example:
        >>> from suffice.measure.metrics import METRICS
        >>> axis_name(METRICS["accuracy"]), axis_name(METRICS["perplexity"])
        ('test accuracy, %', 'test perplexity, lower is better')
    """
    if metric.kind == "share":
        return f"{metric.title}, %"
    return metric.title + ("" if metric.rising else ", lower is better")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure of the report."""

    title: str
    caption: str
    draw: Callable[[Results, Verdict], Figure]
    shown: Callable[[Results, Verdict], bool] = lambda _results, _verdict: True


FIGURES = {
    "differences": Plot(
        title="Difference to the baseline",
        caption="Mean difference, paired by seed, with the interval that decides: it covers seeds "
        "and test rows, and is widened where several could be named. A mechanism suffices when all "
        "of it lies in the shaded part. Below three seeds there is no interval; the strokes are "
        "single seeds.",
        draw=difference_plot,
        shown=lambda _results, verdict: any(c.difference for c in verdict.comparisons),
    ),
    "tradeoff": Plot(
        title="Cost against quality",
        caption="Mean over seeds; the bars are 95% intervals of each mean by "
        "itself. The line is the baseline, the band on its worse side the margin. The verdict "
        "rests on the paired differences above, not on whether bars reach the band.",
        draw=tradeoff,
    ),
    "curves": Plot(
        title="Learning curves",
        caption="Mean over seeds and its 95% interval, as far as at least half of the seeds "
        "trained; below three seeds each seed is a thin line.",
        draw=lambda results, _verdict: learning_curves(results),
        shown=lambda results, _verdict: any(cell.epochs for cell in results.cells),
    ),
    "latency": Plot(
        title="Latency",
        caption="Forward of one batch as a multiple of the baseline's at equal heads in the same "
        "round: median over rounds and quartiles; in brackets the median time. Whiskers that reach "
        "past 1 on both sides: the rounds disagree which is faster, often as the machine was busy.",
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
