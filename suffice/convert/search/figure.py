"""What was predicted against what was measured, and what a smaller state costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, panels_width, plain_powers, style
from suffice.measure.report.palette import COLOURS, FAINT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.convert.search.found import Found, Mix

KINDS = {"random": "random mixes", "uniform": "one option for all", "plan": "the plan"}


def draw(found: Found) -> Figure:
    """Draw all choices that were measured as wholes; bars are 95% intervals over rows."""
    with style():
        figure, axes = blank(1, 2, width=panels_width(2), height=3.8)
        predicted, state = axes[0]
        _points(predicted, found, lambda one: one.predicted)
        predicted.set_xlabel("sum of the layers' divergences, nats per token")
        predicted.set_ylabel("divergence of the whole, nats per token")
        _points(state, found, lambda one: one.state / 1e3)
        state.set_xlabel(f"state of {found.length:,} tokens, kB")
        ends = [x for one in found.mixes if (x := one.predicted) > 0 and one.divergence.mean > 0]
        if ends:
            predicted.set_xscale("log")
            predicted.plot(
                [min(ends), max(ends)], [min(ends), max(ends)], color=FAINT[0], linewidth=1.0
            )
            plain_powers(predicted.xaxis)
            for one in axes[0]:
                one.set_yscale("log")
                plain_powers(one.yaxis)
        state.legend(loc="best")
    return figure


def _points(axes: Axes, found: Found, place: object) -> None:
    for number, (kind, label) in enumerate(KINDS.items()):
        shown: list[Mix] = found.of(kind)
        for one in shown:
            far = one.divergence
            low, high = (far.mean if end is None else end for end in (far.low, far.high))
            axes.errorbar(
                place(one),
                far.mean,
                yerr=[[far.mean - low], [high - far.mean]],
                color=COLOURS[number][0],
                marker=MARKERS[number],
                linestyle="none",
                label=label if one is shown[0] else None,
            )
