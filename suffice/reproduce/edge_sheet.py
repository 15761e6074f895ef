"""The edge table and its bars: seconds, and the ratio to Standard at equal heads."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from suffice.measure.paper import paper_seconds
from suffice.measure.report.canvas import blank, style
from suffice.measure.report.palette import INK, looks
from suffice.measure.report.sheets import Line, Sheet
from suffice.measure.timing import ratio
from suffice.reproduce.edge import SAMPLES, Edge, Group, Timed
from suffice.reproduce.energy import ABSENT
from suffice.reproduce.shown import machine_line
from suffice.reproduce.table import BASELINE, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASKS = {"cifar10_jpeg": "cifar100", "image_folder": "imagenet"}  # what the paper's table names
FIELDS = ("task", "heads", "mechanism", "seconds", "ratio", "joules", "samples", "rank")
COLUMNS = ("task", "heads", "mechanism", "seconds", "ratio", "joules", "paper, s", "paper's ratio")


def records(table: Table, edge: Edge) -> list[dict[str, Any]]:
    """Return one record for each mechanism of each group, ours beside the paper's."""
    found = []
    for group in edge.groups:
        base = _of(group, BASELINE)
        order = sorted(f"{timed.total:.3g}" for timed in group.timed)
        order.sort(key=float)
        for timed in group.timed:
            task = TASKS.get(timed.task, timed.task)
            theirs = paper_seconds(table.paper, task, timed.mechanism, timed.num_heads)
            standard = paper_seconds(table.paper, task, BASELINE, timed.num_heads)
            found.append(
                {
                    "task": task,
                    "heads": timed.num_heads,
                    "mechanism": timed.mechanism,
                    "seconds": timed.total,
                    "ratio": ratio(timed.seconds, base.seconds),
                    "joules": None
                    if timed.joules is None
                    else timed.joules * SAMPLES / timed.samples,
                    "samples": timed.samples,
                    "rank": 1 + order.index(f"{timed.total:.3g}"),
                    "paper": theirs,
                    "paper_ratio": None if None in (theirs, standard) else theirs / standard,
                }
            )
    return found


def edge_sheet(table: Table, edge: Edge, missing: list[tuple[str, int]]) -> Sheet:
    """Lay the table out.

    Args:
        table: an edge table.
        edge: what was timed.
        missing: groups that were not.
    """
    lines, last = [], None
    for record in records(table, edge):
        group = (record["task"], record["heads"])
        lines.append(Line(cells=_cells(record), starts_group=last is not None and group != last))
        last = group
    return Sheet(
        title=f"{table.name}: {table.title}",
        columns=COLUMNS,
        lines=tuple(lines),
        words=("mechanism",),
        caption=" ".join(_notes(table, edge, missing)),
    )


def to_csv(table: Table, edge: Edge) -> str:
    """Write one line for each record."""
    stream = io.StringIO()
    names = (*FIELDS, "paper", "paper_ratio")
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    for record in records(table, edge):
        writer.writerow({key: "" if value is None else value for key, value in record.items()})
    return stream.getvalue()


def latency_bars(table: Table, edge: Edge) -> Figure:
    """Draw the ratio to Standard at equal heads by task: bars ours, lines the paper's."""
    found = records(table, edge)
    heads = sorted({record["heads"] for record in found})
    with style():
        figure, axes = blank(len(heads), 1, width=9.0, height=1.1 + 2.2 * len(heads), sharex="all")
        for (panel,), number in zip(axes, heads, strict=True):
            _panel(panel, [r for r in found if r["heads"] == number])
            panel.set_title(f"{number} head{'s' * (number != 1)}")
            panel.set_ylabel("time / standard's")
        bars, names = axes[0][0].get_legend_handles_labels()
        figure.legend(bars, names, loc="outside upper center", ncols=len(names))
        axes[-1][0].set_xlabel("bars: ours, median over rounds; short lines: the paper's")
    return figure


def _panel(axes: Axes, found: list[dict[str, Any]]) -> None:
    """Draw the bars of equal heads."""
    tasks = list(dict.fromkeys(record["task"] for record in found))
    names = list(dict.fromkeys(record["mechanism"] for record in found))
    width = 0.8 / len(names)
    for place, (name, look) in enumerate(looks(names).items()):
        own = [r for r in found if r["mechanism"] == name]
        at = [tasks.index(r["task"]) + width * (place - (len(names) - 1) / 2) for r in own]
        axes.bar(at, [r["ratio"] for r in own], width=0.9 * width, color=look.colour, label=name)
        told = [(x, r["paper_ratio"]) for x, r in zip(at, own, strict=True) if r["paper_ratio"]]
        axes.hlines(
            [value for _, value in told],
            [x - width / 2 for x, _ in told],
            [x + width / 2 for x, _ in told],
            color=INK[0],
            linewidth=1.2,
        )
    axes.set_xticks(range(len(tasks)), tasks)


def _cells(record: dict[str, Any]) -> tuple[str, ...]:
    theirs, their_ratio, joules = record["paper"], record["paper_ratio"], record["joules"]
    return (
        record["task"],
        str(record["heads"]),
        record["mechanism"],
        f"{record['seconds']:.3g} ({record['rank']})",
        f"{record['ratio']:.3f}",
        "" if joules is None else f"{joules:.3g}",
        "" if theirs is None else f"{theirs:g}",
        "" if their_ratio is None else f"{their_ratio:.3f}",
    )


def _notes(table: Table, edge: Edge, missing: list[tuple[str, int]]) -> list[str]:
    """Say how it was measured, on what, and what is not there."""
    notes = [
        f"Seconds for {SAMPLES:,} samples of drawn inputs at the paper's sizes, batch by batch, "
        "mechanisms in turn: the median batch times their number; (rank) and ratio (median over "
        "rounds) at equal heads. The paper's: "
        f"arXiv:2403.01643, {table.source}, a laptop."
    ]
    fewer = {timed.task: timed.samples for group in edge.groups for timed in group.timed}
    told = [f"{TASKS.get(t, t)} {n}" for t, n in fewer.items() if n < SAMPLES]
    if told:
        notes.append(f"Fewer samples were timed and scaled up: {', '.join(told)}.")
    for line in dict.fromkeys(machine_line(group.machine) for group in edge.groups):
        notes.append(f"Ours on {line}.")
    if any(timed.joules is None for group in edge.groups for timed in group.timed):
        notes.append(f"Joules are blank: {ABSENT}.")
    if missing:
        listed = ", ".join(f"{name} with {heads} heads" for name, heads in missing)
        notes.append(f"Not timed: {listed}.")
    return notes


def _of(group: Group, mechanism: str) -> Timed:
    return next(timed for timed in group.timed if timed.mechanism == mechanism)
