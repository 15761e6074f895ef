"""The results of a comparison: one record per trained model, one per timed layer, one of all.

Accuracies are fractions (0 to 1), times are seconds, sizes are bytes, losses are nats.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote, unquote

from suffice.comparison.answers import BAG, Answers, Key, path_of, read_answers
from suffice.data.survey import Survey
from suffice.errors import ConfigError, DataError, check_known
from suffice.train.recipes import SCALES
from suffice.utils.files import read_json, read_record, write_json
from suffice.utils.records import decode, encode

if TYPE_CHECKING:
    from suffice.data.dataset import Dataset


class _CpuTime(TypedDict, total=False):
    cpu_seconds: float | None  # absent in older files


class EpochRecord(_CpuTime):
    """One epoch of one training run, as `dataclasses.asdict` of the training loop's epoch."""

    epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float


OWN_LOOP = "your own loop"  # task of `suffice.compare`


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One trained model: a mechanism with a number of heads from one seed."""

    mechanism: str
    num_heads: int  # of each attention layer; 0 where results of another program have none
    seed: int  # of weights and data order; equal seeds are paired across mechanisms
    parameters_layer: int  # of one attention layer
    parameters_model: int
    flops: int  # one forward of the attention layers for one sample
    epochs: tuple[EpochRecord, ...] = ()
    best_epoch: int = 0  # the epoch whose weights were scored, from 1
    stopped_early: bool = False
    seconds_per_epoch: float = 0.0  # median
    # of the scored weights; None where somebody's own loop does not return it
    train_loss: float | None = None
    train_accuracy: float | None = None
    train_top5: float | None = None  # None with 5 classes or fewer
    test_loss: float | None
    test_accuracy: float | None
    test_top5: float | None = None
    scores: dict[str, float] = field(default_factory=dict)  # further figures of the test split
    # how a score with variants was computed; and "flops" where no spec gives them
    signatures: dict[str, str] = field(default_factory=dict)
    joules: float | None = None  # of the processor in training; None: not measured
    # KV cache and states of all layers after a text of the trained length in float32; None where
    # one is not causal
    state_bytes: int | None = None

    def __post_init__(self) -> None:
        counts = ("num_heads", "parameters_layer", "parameters_model", "flops", "best_epoch")
        refuse_below(self, 0, *counts)
        for name in ("train_accuracy", "train_top5", "test_accuracy", "test_top5"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value} is not a fraction from 0 to 1.")
        if lost := set(self.signatures) - {*self.scores, "flops"}:
            raise ConfigError(
                f"signatures of {', '.join(sorted(lost))}, which are not scores here."
            )

    @property
    def key(self) -> tuple[str, int, int]:
        """Mechanism, heads, seed."""
        return (self.mechanism, self.num_heads, self.seed)

    def figure(self, name: str) -> float | None:
        """Return a figure by the name of its field or score, None where there is none."""
        return getattr(self, name) if hasattr(self, name) else self.scores.get(name)

    @property
    def cost_seconds(self) -> float:
        """What the training cost: its CPU seconds, which a pause does not lengthen.

        Where an epoch does not tell them (older files, GPUs), every epoch counts like the fastest:
        a pause only lengthens the others. Somebody's own loop has no epochs; its seconds count.
        """
        processor = [epoch.get("cpu_seconds") for epoch in self.epochs]
        if processor and None not in processor:
            return math.fsum(processor)
        fastest = min((epoch["seconds"] for epoch in self.epochs), default=self.seconds_per_epoch)
        return max(1, len(self.epochs)) * fastest


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed and memory of one mechanism with a number of heads, measured interleaved."""

    mechanism: str
    num_heads: int
    latency: tuple[float, ...]  # seconds per forward of one batch, one value per round
    batch_size: int  # samples in that batch
    peak_bytes: int  # maximum of bytes allocated at once during that forward

    def __post_init__(self) -> None:
        refuse_below(self, 1, "num_heads", "batch_size")
        refuse_below(self, 0, "peak_bytes")
        if not self.latency or not min(self.latency) > 0.0:
            raise ConfigError(
                f"latency={self.latency} needs one positive time in seconds per round."
            )

    @property
    def key(self) -> tuple[str, int]:
        """Mechanism, heads."""
        return (self.mechanism, self.num_heads)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The learning rate chosen for one mechanism with a number of heads before the comparison."""

    mechanism: str
    num_heads: int
    rate: float  # the one with the lowest mean loss
    rates: tuple[float, ...]  # rising
    losses: tuple[tuple[float, ...], ...]  # in validation, by rate and seed; infinity: diverged
    seconds: float  # of all trainings

    @property
    def trainings(self) -> int:
        """Their number."""
        return sum(map(len, self.losses))

    @property
    def at_edge(self) -> bool:
        """Whether the rate is the smallest or largest tried, so that a better may lie beyond."""
        return self.rate in (self.rates[0], self.rates[-1])


SEEDS_AND_ROWS, ROWS_ALONE, SEEDS_ALONE, UNPAIRED = "seeds and rows", "rows", "seeds", "none"


@dataclass(frozen=True, kw_only=True)
class External:
    """The reading and pairing of results that another program wrote."""

    sources: dict[str, str]  # source read under each name, in words
    pairing: str  # units that two names share: "seeds and rows", "rows", "seeds" or "none"
    notes: tuple[str, ...] = ()  # sentences about parts that were left out or are not known
    looks: tuple[int, ...] = ()  # numbers of seeds, declared before; empty: one look
    last_digit: float = 0.0  # unit to which scores of seeds were rounded, where rows are not known
    rows_of_tasks: tuple[int, ...] = ()  # of a mean over tasks

    @property
    def pairs_seeds(self) -> bool:
        """Whether the seeds of two names are paired."""
        return self.pairing in (SEEDS_AND_ROWS, SEEDS_ALONE)


PLANNED = ("margin", "baseline", "metric", "better", "relative", "folds")
"""Fields of results that are those of the plan."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A whole comparison, with what is needed to judge and to repeat it.

    Raises:
        ConfigError: for a margin, chance or scale that is not legal, a row that asks for less than
            one answer, or a cell or a speed that is there twice.
    """

    task: str
    recipe: str
    title: str
    margin: float  # loss of the metric that still suffices
    baseline: str  # the mechanism that all others are compared with
    cells: tuple[Cell, ...]
    speeds: tuple[Speed, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None  # of the source; None outside a checkout
    command: str = ""
    started: str = ""  # ISO 8601
    seconds: float = 0.0
    answers: float = 1.0  # mean number that a row of the test split asks for
    chance: float | None = None  # accuracy of a guess; None: not known
    majority: float | None = None  # of always giving the label most frequent in training
    data: Survey | None = None
    scale: str = SCALES[0]
    metric: str = "accuracy"
    better: str | None = None  # "higher" or "lower" for a metric of an own loop other than a share
    relative: bool = False  # whether the margin is a fraction of such a metric, not in its unit
    most_seeds: int | None = None  # of seeds that were added until a verdict stood
    folds: int | None = None  # parts of the rows, each tested by a seed; None: all test the same
    tuned: tuple[Tuned, ...] = ()
    dropped: tuple[str, ...] = ()  # mechanisms of the folder that are not compared any more
    external: External | None = None  # reading of another program's results
    # answers to each test row by (mechanism, heads, seed), kept in files of their own
    rows: Mapping[Key, Answers] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_margin(self.margin, own_unit=self.better is not None and not self.relative)
        if not self.answers >= 1.0:  # so that NaN is refused too
            raise ConfigError(f"answers={self.answers} of a row must be at least 1.")
        if self.chance is not None and not 0.0 <= self.chance <= 1.0:
            raise ConfigError(f"chance={self.chance} is not a fraction from 0 to 1.")
        check_known("scale", self.scale, SCALES)
        refuse_twice("cell", (cell.key for cell in self.cells))
        refuse_twice("speed", (speed.key for speed in self.speeds))

    @classmethod
    def of(cls, plan: Any, cells: Iterable[Cell], **measured: Any) -> Results:
        """Return the results of a plan."""
        recipe = plan.recipe if isinstance(plan.recipe, dict) else vars(plan.recipe)
        fields: dict[str, Any] = {
            "task": recipe["task"],
            "recipe": recipe["name"],
            "title": recipe["title"],
            "scale": recipe.get("scale", SCALES[0]),
            "most_seeds": plan.seeds if plan.auto else None,
            **{name: getattr(plan, name) for name in PLANNED if hasattr(plan, name)},
        }
        return cls(**{**fields, "cells": tuple(cells), **measured})

    def pairs(self) -> list[tuple[str, int]]:
        """List every trained (mechanism, heads), in the order of first appearance."""
        return list(dict.fromkeys((cell.mechanism, cell.num_heads) for cell in self.cells))

    def select(self, mechanism: str, num_heads: int) -> list[Cell]:
        """Return the cells of one (mechanism, heads), by seed."""
        cells = [c for c in self.cells if (c.mechanism, c.num_heads) == (mechanism, num_heads)]
        return sorted(cells, key=lambda cell: cell.seed)

    def speed(self, mechanism: str, num_heads: int) -> Speed | None:
        """Return the speed of one (mechanism, heads), None if it was not timed."""
        return next((s for s in self.speeds if s.key == (mechanism, num_heads)), None)

    def latency_ratios(self, mechanism: str, num_heads: int) -> list[float] | None:
        """Return the latency over the baseline's with the same heads in each round.

        None where one of the two was not timed, or not in the same rounds.
        """
        ours, base = self.speed(mechanism, num_heads), self.speed(self.baseline, num_heads)
        if ours is None or base is None or len(ours.latency) != len(base.latency):
            return None
        return [a / b for a, b in zip(ours.latency, base.latency, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts and lists; numbers that JSON lacks become "nan", "inf", "-inf"."""
        plain = dataclasses.asdict(dataclasses.replace(self, rows={}))
        del plain["rows"]
        return encode(plain)

    @staticmethod
    def from_json(data: object, *, where: str) -> Results:
        """Rebuild what `to_json` gave."""
        return decode(Results, data, where=where)


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The fields of `Results` that its data decide."""

    answers: float
    chance: float | None
    majority: float | None
    data: Survey

    @classmethod
    def of(cls, dataset: Dataset, data: Survey) -> DataFacts:
        """Return the facts of a data set and its survey."""
        answers = int(dataset.test.answers.sum()) / len(dataset.test)
        return cls(answers=answers, chance=data.chance, majority=data.majority, data=data)

    def fields(self) -> dict[str, Any]:
        """Return the arguments of `Results`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


FACTS = "data.json"  # of the folder of a comparison


def write_facts(folder: Path, facts: DataFacts) -> None:
    """Write the facts of the data to the folder of a comparison, before anything is trained."""
    write_json(folder / FACTS, encode(dataclasses.asdict(facts)))


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the arguments of `Results` that the data decide; none in folders that lack them."""
    path = folder / FACTS
    return read_record(DataFacts, path, advice=RERUN).fields() if path.exists() else {}


def check_margin(margin: float, *, own_unit: bool = False) -> None:
    """Refuse a margin that is not a fraction; in a metric's own unit, one that is not a size."""
    if own_unit:
        if not 0.0 <= margin < math.inf:
            raise ConfigError(f"margin={margin:g}; give how much of the metric may be lost, >= 0.")
        return
    if not 0.0 <= margin < 1.0:
        raise ConfigError(
            f"margin={margin:g} is not a fraction of accuracy; give 0 <= margin < 1, "
            "for example 0.01 for one point."
        )


def refuse_below(record: object, least: int, *names: str) -> None:
    """Refuse a count that is too small."""
    for name in names:
        if getattr(record, name) < least:
            raise ConfigError(f"{name}={getattr(record, name)} must be at least {least}.")


def refuse_twice(what: str, keys: Iterable[tuple[object, ...]]) -> None:
    """Refuse records that are there twice."""
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise ConfigError(f"{what} {twice[0]} is given more than once; keep one.")


RETRAIN = "Delete this file; its model will be trained again."
RERUN = "Compare with --resume to write it again."


def cell_path(folder: Path, mechanism: str, num_heads: int, seed: int) -> Path:
    """Return the path of a cell relative to its comparison's folder.

    Example:
        >>> cell_path(Path("run"), "my/own", 4, 0).as_posix()
        'run/cells/my%2Fown-h4-s0.json'
    """
    return folder / "cells" / f"{quote(mechanism, safe='')}-h{num_heads}-s{seed}.json"


def find_cells(folder: Path) -> list[tuple[str, int, int]]:
    """Return mechanism, heads and seed of every cell that is written in a folder."""
    keys = []
    for path in sorted((folder / "cells").glob("*.json")):
        parts = path.stem.rsplit("-", 2)
        if len(parts) == 3 and re.fullmatch(r"h[0-9]+ s[0-9]+", " ".join(parts[1:])):
            key = (unquote(parts[0]), int(parts[1][1:]), int(parts[2][1:]))
            keys.append(key)
    return keys


def write_cell(folder: Path, cell: Cell) -> Path:
    """Write one finished cell and return its file."""
    path = cell_path(folder, *cell.key)
    content = encode(dataclasses.asdict(cell))
    write_json(path, {"sha256": _sha256(content), "cell": content})
    return path


def read_cell(folder: Path, mechanism: str, num_heads: int, seed: int) -> Cell | None:
    """Read one finished cell; None if it was not written yet."""
    path = cell_path(folder, mechanism, num_heads, seed)
    if not path.exists():
        return None
    content = read_json(path, advice=RETRAIN)
    if not isinstance(content, dict) or set(content) != {"sha256", "cell"}:
        raise DataError(f"{path} is not a cell file: it must hold sha256 and cell. {RETRAIN}")
    if content["sha256"] != _sha256(content["cell"]):
        raise DataError(f"{path} was altered: its content does not match its sha256. {RETRAIN}")
    try:
        cell = decode(Cell, content["cell"], where=str(path))
    except DataError as error:
        raise DataError(f"{error} {RETRAIN}") from error
    if cell.key != (mechanism, num_heads, seed):
        raise DataError(
            f"{path} holds mechanism {cell.mechanism!r}, {cell.num_heads} heads, seed {cell.seed}, "
            f"which does not match its file name. {RETRAIN}"
        )
    return cell


def write_results(path: Path, results: Results) -> None:
    """Write the whole comparison to one JSON file."""
    write_json(path, results.to_json())


def read_results(path: Path) -> Results:
    """Read a whole comparison, with the answers that are kept with it."""
    results = Results.from_json(read_json(path, advice=RERUN), where=str(path))
    return with_rows(results, path.parent)


def with_rows(results: Results, folder: Path) -> Results:
    """Return results with the answers that the folder of their comparison keeps."""
    keys = [cell.key for cell in results.cells]
    keys += [(BAG, 0, seed) for seed in range(results.folds or 1)]
    rows = {
        key: answers
        for key in keys
        if (answers := read_answers(path_of(folder, cell_path(folder, *key).stem))) is not None
    }
    return dataclasses.replace(results, rows=rows)


def _sha256(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
