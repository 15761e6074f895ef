"""Seconds for 5,000 samples: the paper's edge table, mechanisms timed in turn at equal heads."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from suffice.errors import DataError
from suffice.measure.decode import decode
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.storage import write_atomic
from suffice.measure.timing import interleave
from suffice.models import ViTConfig
from suffice.recipes import Recipe, recipe
from suffice.reproduce.energy import Meter, meter
from suffice.reproduce.published import path_of, write_published
from suffice.reproduce.table import Table
from suffice.threads import threads

SAMPLES = 5_000
BATCH, SMALL_BATCH = 100, 10
SLOW = 1.0  # seconds of a batch from which smaller ones are timed
LIMIT = 20.0  # seconds of one mechanism, from which fewer samples stand for all
FEWEST = 10  # rounds
QUICK, MOST = 1.0, 10  # seconds below which 5,000 samples are timed again, so many times


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One mechanism on one task.

    Args:
        task: name of the data set.
        recipe: name of the recipe.
        mechanism: its name.
        num_heads: its heads.
        batch: samples of a batch.
        seconds: of a batch, one for each round; round i of all mechanisms stand side by side.
        joules: of all rounds, None where energy cannot be read.
    """

    task: str
    recipe: str
    mechanism: str
    num_heads: int
    batch: int
    seconds: tuple[float, ...]
    joules: float | None

    @property
    def samples(self) -> int:
        """How many samples were timed."""
        return self.batch * len(self.seconds)

    @property
    def total(self) -> float:
        """Seconds of 5,000 samples: as many batches as they make, at the median's time."""
        return statistics.median(self.seconds) * SAMPLES / self.batch


@dataclass(frozen=True, kw_only=True)
class Group:
    """Mechanisms that were timed in turn, on what.

    Args:
        timed: one record for each.
        machine: facts about it.
        versions: of the software.
        commit: of the source.
        minutes: that the group took.
    """

    timed: tuple[Timed, ...]
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    minutes: float


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Every group of an edge table.

    Args:
        groups: in the order of tasks and heads.
    """

    groups: tuple[Group, ...]


def wanted(table: Table, heads: tuple[int, ...] | None = None) -> list[tuple[str, int]]:
    """Return every (recipe, heads) of an edge table, heads that divide the width alone."""
    return [
        (name, number)
        for name in table.parts
        for number in heads or table.heads
        if recipe(name).model.d_model % number == 0
    ]


def time_group(name: str, heads: int, mechanisms: tuple[str, ...]) -> Group:
    """Time the forward passes of one task at equal heads, mechanisms in turn.

    The inputs are drawn: what a forward costs does not depend on what they hold.

    Args:
        name: of the recipe, at the paper's scale.
        heads: of each mechanism.
        mechanisms: what is timed.
    """
    began = time.monotonic()
    made, found = recipe(name), meter()
    torch.manual_seed(0)
    models = {mechanism: made.build(mechanism, heads).eval() for mechanism in mechanisms}
    with torch.inference_mode():
        batch, rounds = _amount(made, next(iter(models.values())))
        inputs = drawn(made, batch)
        spent = dict.fromkeys(models, 0.0)
        calls = {
            mechanism: _call(model, inputs, found, spent, mechanism)
            for mechanism, model in models.items()
        }
        for call in calls.values():
            call()
        spent.update(dict.fromkeys(models, 0.0))
        times = interleave(calls, rounds=rounds, warmup=0, min_seconds_per_sample=1e-9)
    timed = [
        Timed(
            task=made.task,
            recipe=name,
            mechanism=mechanism,
            num_heads=heads,
            batch=batch,
            seconds=times[mechanism],
            # one call more than rounds: the one that finds how long a call takes
            joules=spent[mechanism] * rounds / (rounds + 1) if found else None,
        )
        for mechanism in mechanisms
    ]
    return Group(
        timed=tuple(timed),
        machine={**machine_facts(), "threads": threads()},
        versions=software_versions(),
        commit=source_commit(),
        minutes=round((time.monotonic() - began) / 60, 3),
    )


def drawn(made: Recipe, batch: int) -> Tensor:
    """Draw inputs of a recipe's form: pictures, or rows of tokens."""
    model = made.model
    if isinstance(model, ViTConfig):
        return torch.randn(batch, model.channels, model.image_size, model.image_size)
    return torch.randint(1, model.vocabulary_size, (batch, model.length))


def run_edge(
    table: Table, folder: Path, keys: list[tuple[str, int]], *, console: Console | None
) -> None:
    """Time the groups that are not in the folder yet, each written when it is done.

    Args:
        table: an edge table.
        folder: working folder.
        keys: (recipe, heads) of each group.
        console: where a line tells each group; None is silent.
    """
    for name, heads in keys:
        path = _path(folder, name, heads)
        if path.exists():
            continue
        if console is not None:
            told = f"timing {name}, {heads} heads"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
        group = time_group(name, heads, table.mechanisms)
        write_atomic(path, json.dumps(asdict(group), indent=1) + "\n")


def finished(table: Table, folder: Path, keys: list[tuple[str, int]]) -> Edge:
    """Read the groups of a working folder, and of the published file where the folder has none.

    Raises:
        DataError: if a file is truncated or altered.
    """
    kept = {_key(group): group for group in published_edge(table).groups}
    found = []
    for key in keys:
        path = _path(folder, *key)
        if path.exists():
            found.append(_read(Group, path))
        elif key in kept:
            found.append(kept[key])
    return Edge(groups=tuple(found))


def published_edge(table: Table) -> Edge:
    """Return the times that come with the package; no groups if there are none.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path = path_of(table.store)
    return _read(Edge, path) if path.exists() else Edge(groups=())


def publish_edge(table: Table, edge: Edge) -> Path:
    """Write the times that come with the package and return their file.

    Raises:
        DataError: if the package is not a checkout that can be written.
    """
    return write_published(table.store, asdict(edge))


def _read(record: Callable[..., Any], path: Path) -> Any:
    """Read a record, or say what is wrong with its file."""
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it to time again.") from error
    return decode(record, given, where=str(path))


def _key(group: Group) -> tuple[str, int]:
    return group.timed[0].recipe, group.timed[0].num_heads


def _path(folder: Path, name: str, heads: int) -> Path:
    return folder / "groups" / f"{name}-h{heads}.json"


def _amount(made: Recipe, model: nn.Module) -> tuple[int, int]:
    """Return samples of a batch and rounds: 5,000 samples, as many as the time allows, or more."""
    seconds = _seconds(model, drawn(made, SMALL_BATCH))
    if seconds * BATCH / SMALL_BATCH <= SLOW:
        whole = SAMPLES // BATCH
        often = math.ceil(QUICK / (whole * seconds * BATCH / SMALL_BATCH))
        return BATCH, whole * min(often, MOST)
    rounds = round(LIMIT / seconds)
    return SMALL_BATCH, min(SAMPLES // SMALL_BATCH, max(FEWEST, rounds))


def _seconds(model: nn.Module, inputs: Tensor) -> float:
    """Return the seconds of the second of two calls."""
    model(inputs)
    start = time.perf_counter()
    model(inputs)
    return time.perf_counter() - start


def _call(
    model: nn.Module, inputs: Tensor, found: Meter | None, spent: dict[str, float], name: str
) -> Callable[[], None]:
    """Return a forward pass that adds its energy to what was spent."""
    if found is None:
        return lambda: model(inputs)

    def call() -> None:
        before = found.read()
        model(inputs)
        spent[name] += found.since(before)

    return call
