"""Cost against quality: where each mechanism stands, and how far below the baseline is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.errors import unknown
from suffice.measure.report.canvas import blank, panels_width, style
from suffice.measure.report.labels import place_labels
from suffice.measure.report.palette import BAND, FAINT, looks
from suffice.measure.report.rows import Row, build_rows
from suffice.measure.results import Results
from suffice.measure.sentence import count_heads
from suffice.measure.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.palette import Look

AXES = {
    "flops": ("attention FLOPs per sample, millions", lambda row: row.flops / 1e6),
    "latency": (
        "latency of one batch, ms",
        lambda row: None if row.latency is None else 1e3 * row.latency.median,
    ),
    "parameters": ("model parameters, thousands", lambda row: row.parameters_model / 1e3),
}


def tradeoff(results: Results, verdict: Verdict) -> Figure:
    """Draw test accuracy over cost, one column per number of heads.

    The band reaches from the baseline's mean down by the margin. The bars are the 95% intervals
    of each mean by itself; the verdict rests on paired differences, whose intervals are narrower
    when seeds move together.

    Raises:
        ConfigError: if the verdict's cost is not one that can be drawn.
    """
    if verdict.by not in AXES:
        raise unknown("cost", verdict.by, AXES)
    title, value = AXES[verdict.by]
    rows = [row for row in build_rows(results, verdict) if value(row) is not None]
    heads = sorted({row.num_heads for row in rows})
    found = looks(name for name, _ in results.pairs())
    with style():
        figure, axes = blank(
            1, len(heads), width=panels_width(len(heads)), height=4.0, sharey="all"
        )
        for panel, num_heads in zip(axes[0], heads, strict=True):
            shown = [(row, value(row)) for row in rows if row.num_heads == num_heads]
            _panel(panel, shown, found, verdict)
            panel.set_title(count_heads(num_heads))
            panel.set_xlabel(title)
        axes[0][0].set_ylabel("test accuracy, %")
        for panel, num_heads in zip(axes[0], heads, strict=True):
            shown = [(row, value(row)) for row in rows if row.num_heads == num_heads]
            _name(panel, shown, found, verdict)
    return figure


def _panel(
    axes: Axes, shown: list[tuple[Row, float]], found: dict[str, Look], verdict: Verdict
) -> None:
    """Draw the points of one number of heads and the baseline's band."""
    baseline = verdict.accuracies.get(shown[0][0].num_heads)
    if baseline is not None:
        top = 100 * baseline.mean
        axes.axhspan(top - 100 * verdict.margin, top, color=BAND[0], linewidth=0, zorder=0.5)
        axes.axhline(top, color=FAINT[0], linewidth=1.0, zorder=0.6)
    for row, x in shown:
        low, mean, high = _ends(row)
        look = found[row.mechanism]
        axes.errorbar(
            x, mean, yerr=[[mean - low], [high - mean]], color=look.colour, marker=look.marker
        )
    costs = [x for _, x in shown]
    room = 0.25 * (max(costs) - min(costs) or max(costs) or 1.0)
    axes.set_xlim(max(0.0, min(costs) - room), max(costs) + room)
    axes.margins(y=0.12)


def _name(
    axes: Axes, shown: list[tuple[Row, float]], found: dict[str, Look], verdict: Verdict
) -> None:
    """Write the names, clear of the bars and of the baseline."""
    bars = [((x, _ends(row)[0]), (x, _ends(row)[2])) for row, x in shown]
    baseline = verdict.accuracies.get(shown[0][0].num_heads)
    if baseline is not None:
        low, high = axes.get_xlim()
        bars.append(((low, 100 * baseline.mean), (high, 100 * baseline.mean)))
    points = {row.mechanism: (x, 100 * row.test_accuracy.mean) for row, x in shown}
    place_labels(axes, points, [found[row.mechanism].colour for row, _ in shown], bars)


def _ends(row: Row) -> tuple[float, float, float]:
    """Return mean test accuracy and the ends of its interval in percent; one seed has none."""
    found = row.test_accuracy
    if found.sd is None:
        return 100 * found.mean, 100 * found.mean, 100 * found.mean
    return 100 * found.low, 100 * found.mean, 100 * found.high
