"""Seconds for 5,000 samples: the paper's edge table, mechanisms timed in turn at equal heads."""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import Tensor, nn

from suffice.comparison.report.sheet import Column, Sheet, rank_text, sheet_of
from suffice.models import ViTConfig
from suffice.train.recipes import Recipe, recipe
from suffice.utils.canvas import INK, blank, line_styles, style
from suffice.utils.files import locked, read_record, write_json
from suffice.utils.machine import EnergyMeter, machine_facts, software_versions, source_commit
from suffice.utils.timing import interleave, ratio, summarise_times
from suffice.utils.torch_compat import threads
from suffice_papers.results import read_stored, write_published
from suffice_papers.rows import machine_line
from suffice_papers.sheets import csv_text, ranks_apart
from suffice_papers.tables import BASELINE, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ABSENT = "this system shows no counter of energy that may be read (RAPL)"
AGAIN = "Delete it to time again."
SAMPLES = 5_000
BATCH, SMALL_BATCH = 100, 10
SLOW_BATCH = 1.0  # seconds of a batch from which smaller ones are timed
LIMIT = 20.0  # seconds of one mechanism, from which fewer samples stand for all
MIN_ROUNDS = 10
QUICK, REPEATS = 1.0, 10  # seconds below which 5,000 samples are timed again, and how often


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One mechanism on one task."""

    task: str  # name of the data set
    recipe: str  # name of the recipe
    mechanism: str  # name of the mechanism
    num_heads: int  # heads of the mechanism
    batch: int  # samples of a batch
    # seconds of a batch in each round; round i of all mechanisms stand side by side
    seconds: tuple[float, ...]
    joules: float | None  # energy of all rounds, None where it cannot be read

    @property
    def samples(self) -> int:
        """Number of timed samples."""
        return self.batch * len(self.seconds)

    @property
    def total(self) -> float:
        """Seconds of 5,000 samples: all their batches, at the median's time."""
        return statistics.median(self.seconds) * SAMPLES / self.batch


@dataclass(frozen=True, kw_only=True)
class TimedGroup:
    """Mechanisms that were timed in turn, on what."""

    timed: tuple[Timed, ...]
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    minutes: float


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Every group of an edge table."""

    groups: tuple[TimedGroup, ...] = ()


def wanted(table: Table, heads: tuple[int, ...] | None = None) -> list[tuple[str, int]]:
    """Return every (recipe, heads) of an edge table, heads that divide the width alone."""
    return [
        (name, number)
        for name in table.parts
        for number in heads or table.heads
        if recipe(name).model.d_model % number == 0
    ]


def time_group(name: str, heads: int, mechanisms: tuple[str, ...]) -> TimedGroup:
    """Time the forward passes of one task at equal heads, mechanisms in turn.

    The inputs are drawn: what a forward costs does not depend on what they hold.
    """
    began = time.monotonic()
    chosen, joules_known = recipe(name), EnergyMeter().joules() is not None
    torch.manual_seed(0)
    models = {mechanism: chosen.build(mechanism, heads).eval() for mechanism in mechanisms}
    with torch.inference_mode():
        batch, rounds = _amount(chosen, next(iter(models.values())))
        inputs = random_inputs(chosen, batch)
        joules_spent = dict.fromkeys(models, 0.0)
        calls = {
            mechanism: _call(model, inputs, joules_spent, mechanism, metered=joules_known)
            for mechanism, model in models.items()
        }
        for call in calls.values():
            call()
        joules_spent.update(dict.fromkeys(models, 0.0))
        times = interleave(calls, rounds=rounds, warmup=0, min_seconds_per_sample=1e-9)
    timed = [
        Timed(
            task=chosen.task,
            recipe=name,
            mechanism=mechanism,
            num_heads=heads,
            batch=batch,
            seconds=times[mechanism],
            # one call more than rounds: the one that finds how long a call takes
            joules=joules_spent[mechanism] * rounds / (rounds + 1) if joules_known else None,
        )
        for mechanism in mechanisms
    ]
    return TimedGroup(
        timed=tuple(timed),
        machine={**machine_facts(), "threads": threads()},
        versions=software_versions(),
        commit=source_commit(),
        minutes=round((time.monotonic() - began) / 60, 3),
    )


def random_inputs(chosen: Recipe, batch: int) -> Tensor:
    """Draw inputs of a recipe's form: pictures, or rows of tokens."""
    model = chosen.model
    if isinstance(model, ViTConfig):
        return torch.randn(batch, model.channels, model.image_size, model.image_size)
    return torch.randint(1, model.vocabulary_size, (batch, model.length))


def run_edge(
    table: Table, folder: Path, keys: list[tuple[str, int]], *, console: Console | None
) -> None:
    """Time the groups that are not in the folder yet, each written when it is done."""
    with locked(folder):
        for name, heads in keys:
            path = _path(folder, name, heads)
            if path.exists():
                continue
            if console is not None:
                line = f"timing {name}, {heads} heads"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            group = time_group(name, heads, table.mechanisms)
            write_json(path, asdict(group))


def finished(table: Table, folder: Path, keys: list[tuple[str, int]]) -> Edge:
    """Read the groups of a working folder, and of the published file where the folder has none."""
    groups = {_key(group): group for group in published_edge(table).groups}
    paths = {key: _path(folder, *key) for key in keys}
    for key, path in paths.items():
        if path.exists():
            groups[key] = read_record(TimedGroup, path, advice=AGAIN)
    return Edge(groups=tuple(groups[key] for key in keys if key in groups))


def published_edge(table: Table) -> Edge:
    """Return the times that come with the package; no groups if there are none."""
    return read_stored(Edge, table.store)


def publish_edge(table: Table, edge: Edge) -> Path:
    """Write the times that come with the package and return their file."""
    return write_published(table.store, asdict(edge))


def _key(group: TimedGroup) -> tuple[str, int]:
    return group.timed[0].recipe, group.timed[0].num_heads


def _path(folder: Path, name: str, heads: int) -> Path:
    return folder / "groups" / f"{name}-h{heads}.json"


def _amount(chosen: Recipe, model: nn.Module) -> tuple[int, int]:
    seconds = _seconds(model, random_inputs(chosen, SMALL_BATCH))
    if seconds * BATCH / SMALL_BATCH <= SLOW_BATCH:
        whole = SAMPLES // BATCH
        often = math.ceil(QUICK / (whole * seconds * BATCH / SMALL_BATCH))
        return BATCH, whole * min(often, REPEATS)
    rounds = round(LIMIT / seconds)
    return SMALL_BATCH, min(SAMPLES // SMALL_BATCH, max(MIN_ROUNDS, rounds))


def _seconds(model: nn.Module, inputs: Tensor) -> float:
    model(inputs)
    start = time.perf_counter()
    model(inputs)
    return time.perf_counter() - start


def _call(
    model: nn.Module, inputs: Tensor, spent: dict[str, float], name: str, *, metered: bool
) -> Callable[[], None]:
    if not metered:
        return lambda: model(inputs)

    def call() -> None:
        meter = EnergyMeter()
        model(inputs)
        spent[name] += meter.joules() or 0.0

    return call


def paper_seconds(version: str, task: str, mechanism: str, heads: int) -> float | None:
    """Return the paper's seconds for 5,000 samples on its edge device, None where not printed.

    Example:
        >>> paper_seconds("v2", "imdb", "efficient", 4)
        0.17
    """
    return _printed().get((version, task, mechanism, heads))


@cache
def _printed() -> dict[tuple[str, str, str, int], float]:
    text = resources.files("suffice_papers").joinpath("paper_edge.csv").read_text("utf-8")
    return {
        (row["version"], row["task"], row["mechanism"], int(row["num_heads"])): float(
            row["seconds"]
        )
        for row in csv.DictReader(text.splitlines())
    }


TASKS = {"cifar10_jpeg": "cifar100", "image_folder": "imagenet"}  # what the paper's table names
FIELDS = ("task", "heads", "mechanism", "seconds", "ratio", "joules", "samples", "rank")
FIELDS += ("paper", "paper_ratio")


def records(table: Table, edge: Edge) -> list[dict[str, Any]]:
    """Return one record for each mechanism of each group, ours next to the paper's."""
    rows = []
    for group in edge.groups:
        base = _of(group, BASELINE)
        quartiles = {timed.mechanism: summarise_times(timed.seconds) for timed in group.timed}
        places = ranks_apart({name: (q.low, q.high) for name, q in quartiles.items()})
        for timed in group.timed:
            task = TASKS.get(timed.task, timed.task)
            theirs = paper_seconds(table.paper, task, timed.mechanism, timed.num_heads)
            standard = paper_seconds(table.paper, task, BASELINE, timed.num_heads)
            rows.append(
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
                    "rank": places[timed.mechanism],
                    "paper": theirs,
                    "paper_ratio": None if None in (theirs, standard) else theirs / standard,
                }
            )
    return rows


def _blank_or(form: str, name: str) -> Callable[[dict[str, Any]], str]:
    return lambda record: "" if record[name] is None else format(record[name], form)


COLUMNS = (
    Column(title="task", cell=lambda record: record["task"]),
    Column(title="heads", cell=lambda record: str(record["heads"])),
    Column(title="mechanism", cell=lambda record: record["mechanism"], words=True),
    Column(
        title="seconds", cell=lambda record: f"{record['seconds']:.3g}" + rank_text(record["rank"])
    ),
    Column(title="ratio", cell=_blank_or(".3f", "ratio")),
    Column(title="joules", cell=_blank_or(".3g", "joules")),
    Column(title="paper, s", cell=_blank_or("g", "paper")),
    Column(title="paper's ratio", cell=_blank_or(".3f", "paper_ratio")),
)


def edge_sheet(table: Table, edge: Edge, missing: list[tuple[str, int]]) -> Sheet:
    """Lay the table out."""
    return sheet_of(
        f"{table.name}: {table.title}",
        COLUMNS,
        records(table, edge),
        group=lambda record: (record["task"], record["heads"]),
        caption=" ".join(_notes(table, edge, missing)),
    )


def to_csv(table: Table, edge: Edge) -> str:
    """Write one line for each record."""
    return csv_text(FIELDS, records(table, edge))


def latency_bars(table: Table, edge: Edge) -> Figure:
    """Draw the ratio to Standard at equal heads by task: bars ours, lines the paper's."""
    rows = records(table, edge)
    heads = sorted({record["heads"] for record in rows})
    with style():
        figure, axes = blank(len(heads), 1, width=9.0, height=1.1 + 2.2 * len(heads), sharex="all")
        for (panel,), number in zip(axes, heads, strict=True):
            _panel(panel, [r for r in rows if r["heads"] == number])
            panel.set_title(f"{number} head{'s' * (number != 1)}")
            panel.set_ylabel("time / standard's")
        bars, names = axes[0][0].get_legend_handles_labels()
        figure.legend(bars, names, loc="outside upper center", ncols=len(names))
        axes[-1][0].set_xlabel("bars: ours, median over rounds; short lines: the paper's")
    return figure


def _panel(axes: Axes, rows: list[dict[str, Any]]) -> None:
    tasks = list(dict.fromkeys(record["task"] for record in rows))
    names = list(dict.fromkeys(record["mechanism"] for record in rows))
    width = 0.8 / len(names)
    for place, (name, line_style) in enumerate(line_styles(names).items()):
        bars = [r for r in rows if r["mechanism"] == name]
        at = [tasks.index(r["task"]) + width * (place - (len(names) - 1) / 2) for r in bars]
        axes.bar(
            at, [r["ratio"] for r in bars], width=0.9 * width, color=line_style.colour, label=name
        )
        marks = [(x, r["paper_ratio"]) for x, r in zip(at, bars, strict=True) if r["paper_ratio"]]
        axes.hlines(
            [value for _, value in marks],
            [x - width / 2 for x, _ in marks],
            [x + width / 2 for x, _ in marks],
            color=INK[0],
            linewidth=1.2,
        )
    axes.set_xticks(range(len(tasks)), tasks)


def _notes(table: Table, edge: Edge, missing: list[tuple[str, int]]) -> list[str]:
    notes = [
        f"Seconds for {SAMPLES:,} samples of drawn inputs at the paper's sizes, batch by batch, "
        "mechanisms in turn: the median batch times their number; ratio (median over rounds) "
        "at equal heads, and (rank) where the quartiles of the rounds overlap no other's. "
        f"The paper's: arXiv:2403.01643, {table.source}, a laptop."
    ]
    fewer = {timed.task: timed.samples for group in edge.groups for timed in group.timed}
    listed = [f"{TASKS.get(t, t)} {n}" for t, n in fewer.items() if n < SAMPLES]
    if listed:
        notes.append(f"Fewer samples were timed and scaled up: {', '.join(listed)}.")
    for line in dict.fromkeys(machine_line(group.machine) for group in edge.groups):
        notes.append(f"Ours on {line}.")
    if any(timed.joules is None for group in edge.groups for timed in group.timed):
        notes.append(f"Joules are blank: {ABSENT}.")
    if missing:
        listed = ", ".join(f"{name} with {heads} heads" for name, heads in missing)
        notes.append(f"Not timed: {listed}.")
    return notes


def _of(group: TimedGroup, mechanism: str) -> Timed:
    return next(timed for timed in group.timed if timed.mechanism == mechanism)
