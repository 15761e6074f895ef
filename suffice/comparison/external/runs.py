"""Scores that other programs wrote: one run for each trained model, by row where rows are known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suffice.errors import DataError

Values = NDArray[np.float64]


class RowNames:
    """Numbers the names of rows, the same name alike in every file."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._groups: dict[tuple[str, int], str] = {}  # by task and number of a row

    def number(self, name: object) -> int:
        return self._numbers.setdefault(str(name), len(self._numbers))

    def name(self, number: int) -> str:
        return list(self._numbers)[number]

    def put_into_group(self, task: str, row: int, group: object) -> None:
        """Keep the group of a row, the same in every run."""
        before = self._groups.setdefault((task, row), str(group))
        if before != str(group):
            raise DataError(
                f"row {self.name(row)!r} is in group {before!r} and in group {str(group)!r}; a row "
                "has one group in all runs."
            )

    def groups(self, task: str, rows: Values) -> NDArray[np.int64] | None:
        """Return numbers of the groups of rows; None where rows are the samples."""
        if not self._groups:
            return None
        names = [self._groups.get((task, int(row))) for row in rows]
        if None in names:
            raise DataError("not all results name the groups of their rows; name them in all.")
        return np.unique(names, return_inverse=True)[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The scores of one trained model on one task."""

    scores: dict[str, Values]  # scores [R] by metric, as the source wrote them
    task: str = ""  # name of the task; "" where the source has one
    seed: str | None = None  # label of the training; None where it is not known
    # numbers of the rows, [R]; None where each metric has one value, R = 1
    rows: NDArray[np.int64] | None = None


@dataclass(kw_only=True)
class Source:
    """All runs under one name."""

    name: str  # name of the mechanism, model or setting
    path: str  # path that was read
    kind: str  # kind of the files
    runs: list[Run]  # run of each task and trained model
    # "higher" or "lower" by metric, as far as the source tells
    better: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences about choices in reading
    # whether the labels of the seeds are those of the folds of a cross-validation
    folds: bool = False

    @property
    def metrics(self) -> list[str]:
        """Metrics that every run has, in the order of the first."""
        return [m for m in self.runs[0].scores if all(m in run.scores for run in self.runs)]

    @property
    def tasks(self) -> list[str]:
        """Tasks in the order of first appearance."""
        return list(dict.fromkeys(run.task for run in self.runs))

    def described(self) -> str:
        """Say what was read."""
        seeds = len(self.runs) // len(self.tasks)
        text = f"read as {self.kind}: {seeds} {'fold' if self.folds else 'run'}{'s' * (seeds != 1)}"
        if self.runs[0].rows is not None:
            text += f" of {len(self.runs[0].rows):,} rows"
        return text + (f", {len(self.tasks)} tasks" if len(self.tasks) > 1 else "")


def all_under(name: str, sources: list[Source]) -> Source:
    """Return one source of this name with the runs of all, whatever names the file gives."""
    return replace(sources[0], name=name, runs=[run for source in sources for run in source.runs])


TRUE, FALSE = ("true", "yes", "correct", "right"), ("false", "no", "incorrect", "wrong")


def number_of(value: object, where: str) -> float:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in TRUE or word in FALSE:
        return float(word in TRUE)
    try:
        number = float(word)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{where} has the score {word!r:.40}, which is not a finite number; leave out the "
            "whole run, or score it."
        )
    return number


SEED = re.compile(r"(?:seed|run|rep|trial)[-_=. ]?(\d+)", re.IGNORECASE)


def seed_in(path: Path) -> str | None:
    """Return the seed that the name of a file or of its folder tells.

    Example:
        >>> seed_in(Path("runs/a-seed3/trainer_state.json")), seed_in(Path("runs/a/state.json"))
        ('3', None)
    """
    for part in (path.stem, path.parent.name):
        if match := SEED.search(part):
            return match[1]
    return None


def names_apart(paths: Iterable[Path]) -> list[str]:
    """Return the shortest ends of paths, without suffixes, that tell them apart.

    Example:
        >>> names_apart([Path("runs/a.csv"), Path("runs/b.csv")])
        ['a', 'b']
        >>> names_apart([Path("a/scores.csv"), Path("b/scores.csv")])
        ['a', 'b']
    """
    parts = [[*path.parts[:-1], path.name.split(".")[0] or path.name] for path in paths]
    deepest = max(map(len, parts))
    for depth in range(1, deepest + 1):
        names = [name[-depth] if len(name) >= depth else "/".join(name) for name in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(name) for name in parts]
