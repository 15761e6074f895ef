"""The figures of docs/atlas.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from suffice.comparison.recall import RECALL, UNSOLVED
from suffice.comparison.report.plots import place_labels
from suffice.comparison.sufficiency import FAILS, SUFFICES, TOO_EASY, UNDECIDED, UNLEARNED
from suffice.utils.canvas import FAINT, INK, blank, style
from suffice_papers.atlas.recipes import TASKS
from suffice_papers.atlas.standings import NATS, Standing, standings
from suffice_papers.tables import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def tasks_shown() -> list[str]:
    """Return the tasks that have a published table."""
    return [task for task in TASKS if any(row.task == task for row in standings())]


COLOURS = {SUFFICES: "#00855f", FAILS: "#b23a12", UNDECIDED: "#7a6a00"}
COLOURS |= {TOO_EASY: "#4b6a88", UNLEARNED: FAINT[0], UNSOLVED: FAINT[0]}
COSTS = {
    "state": "KV cache or state of a layer after the input, bytes",
    "seconds": "CPU seconds to Standard's validation loss",
}


def quality_figure(cost: str) -> Figure:
    """Draw quality over a cost, "state" or "seconds", with the names of what nothing beats.

    Colours are verdicts. The bars are the 95% intervals of each mean by itself; verdicts rest on
    differences seed by seed, whose intervals are narrower.
    """
    rows = [row for row in standings() if getattr(row, cost) and not row.same_as]
    tasks = [task for task in tasks_shown() if any(row.task == task for row in rows)]
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    with style():
        figure, grid = blank(lines, columns, width=4.8 * columns, height=3.6 * lines)
        panels = [axes for line in grid for axes in line]
        for axes in panels[len(tasks) :]:
            axes.set_visible(False)
        for axes, task in zip(panels, tasks, strict=False):
            _panel(axes, [row for row in rows if row.task == task], cost)
            axes.set_title(task)
    return figure


def _panel(axes: Axes, rows: Sequence[Standing], cost: str) -> None:
    scale = 1 if rows[0].task in NATS else 100
    for row in rows:
        low, mean, high = (
            row.quality.mean if end is None else end
            for end in (row.quality.low, row.quality.mean, row.quality.high)
        )
        axes.errorbar(
            getattr(row, cost),
            scale * mean,
            yerr=[[scale * (mean - low)], [scale * (high - mean)]],
            color=_colour(row),
            marker="s" if row.mechanism == BASELINE else "o",
            linewidth=1.0,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(COSTS[cost])
    axes.set_ylabel("minus the loss, nats" if scale == 1 else "test accuracy, %")
    axes.margins(0.12)
    best, named = -math.inf, []
    for row in sorted(rows, key=lambda row: (getattr(row, cost), -row.quality.mean)):
        if row.quality.mean > best or row.mechanism == BASELINE:
            named.append(row)
        best = max(best, row.quality.mean)
    points = {row.mechanism: (getattr(row, cost), scale * row.quality.mean) for row in named}
    place_labels(axes, points, list(map(_colour, named)), [])


def _colour(row: Standing) -> str:
    return INK[0] if row.mechanism == BASELINE else COLOURS[row.verdict]


def matrix_figure(tasks: Sequence[str]) -> Figure:
    """Draw the marks of some tasks."""
    from matplotlib.patches import Rectangle

    rows = [row for row in standings() if row.task in tasks and row.mechanism != BASELINE]
    names = list(dict.fromkeys(row.mechanism for row in rows))
    with style():
        height = 1.0 + 0.23 * len(names)
        figure, [[axes]] = blank(1, 1, width=2.8 + 0.8 * len(tasks), height=height)
        for row in rows:
            x, y = tasks.index(row.task), names.index(row.mechanism)
            colour = COLOURS[row.verdict] if row.known else FAINT[0]
            faint = {SUFFICES: 0.25, FAILS: 0.25}.get(row.verdict, 0.12) if row.known else 0.04
            square = {"color": colour, "alpha": faint, "linewidth": 0}
            axes.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, **square))
            axes.text(x, y, row.mark, ha="center", va="center", fontsize=7.5, color=INK[0])
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xticks(range(len(tasks)), tasks, rotation=35, ha="left")
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return figure


def figures() -> dict[str, Callable[[], Figure]]:
    """Return what draws the figures of the page, by the names of their files."""
    kinds: dict[str, list[str]] = {"recall": [], "real": []}
    for task in tasks_shown():
        kinds["recall" if TASKS[task][0] in RECALL else "real"].append(task)
    costs = [c for c in COSTS if any(getattr(row, c) for row in standings())]
    drawn = {f"matrix-{n}": partial(matrix_figure, tasks) for n, tasks in kinds.items() if tasks}
    return drawn | {f"quality-{cost}": partial(quality_figure, cost) for cost in costs}
