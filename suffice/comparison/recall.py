"""Recall as a success of whole trainings: how many seeds solve a task, and after how many epochs.

Seeds of such a task either find the mechanism that solves it or stay near chance, so that their
mean says little and its interval less; how many of them solve it has an exact interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffice.comparison.results import Cell
from suffice.comparison.sufficiency import FAILS, FIRST, SUFFICES, UNDECIDED, level
from suffice.utils.statistics import fisher, upper_rate

RECALL = ("mqar", "induction", "copy", "two_hop", "passkey")
"""Data sets that are drawn, of whose models it counts how many seeds solve them."""
ENOUGH = 5  # seeds that all solve a task, from which on it counts as solved
MAX_SEEDS = 10
UNSOLVED = "the baseline never solves it"
ALPHA = 0.05  # over all looks, of both sides


@dataclass(frozen=True, kw_only=True)
class Solved:
    """How many seeds of a mechanism solved a task of recall."""

    count: int  # seeds that solved it
    seeds: int  # all seeds
    epochs: tuple[int | None, ...]  # epochs after which each did, None where training ended before

    @classmethod
    def of(cls, cells: Sequence[Cell], enough: float) -> Solved:
        """Return the seeds whose validation accuracy came to `enough`, and when."""
        epochs = tuple(
            next((e["epoch"] for e in cell.epochs if e["validation_accuracy"] >= enough), None)
            for cell in cells
        )
        count = sum(epoch is not None for epoch in epochs)
        return cls(count=count, seeds=len(cells), epochs=epochs)

    @property
    def interval(self) -> tuple[float, float]:
        """The rate of seeds that solve it, by Clopper and Pearson, with 95% confidence.

        Example:
            >>> low, high = Solved(count=5, seeds=5, epochs=(3,) * 5).interval
            >>> round(low, 2), high
            (0.48, 1.0)
        """
        failed = upper_rate(self.seeds - self.count, self.seeds, 0.975)
        return 1.0 - failed, upper_rate(self.count, self.seeds, 0.975)

    @property
    def median_epochs(self) -> float | None:
        """The median of the epochs to solve it; None where half of the seeds or fewer did.

        Example:
            >>> Solved(count=2, seeds=3, epochs=(4, None, 6)).median_epochs
            6
        """
        if 2 * self.count <= self.seeds:
            return None
        known = sorted(epoch for epoch in self.epochs if epoch is not None)
        return known[(self.seeds - 1) // 2]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.count} of {self.seeds} seeds [{100 * low:.0f}, {100 * high:.0f}]%"


def recalls(solved: Solved, baseline: Solved) -> str:
    """Return what the seeds say of a mechanism, compared with those of the baseline.

    Returns:
        "suffices" if all of at least `ENOUGH` seeds solve the task, whatever the baseline's do;
        "does not suffice" if they do so less often than the baseline's, by Fisher's exact test at
        the level of the look; "the baseline never solves it" if no seed of either may be expected
        to; else "undecided".
    """
    if solved.count == solved.seeds:
        return SUFFICES if solved.seeds >= ENOUGH else UNDECIDED
    if baseline.seeds >= FIRST and not baseline.count:
        return UNSOLVED
    looks = max(MAX_SEEDS, solved.seeds)
    if solved.seeds >= FIRST and _rarer(solved, baseline) < level(ALPHA, solved.seeds, looks) / 2:
        return FAILS
    return UNDECIDED


def is_open(solved: Solved, baseline: Solved) -> bool:
    """Return whether a further seed may say more: not decided, and up to `MAX_SEEDS` decidable."""
    if solved.seeds < FIRST:
        return True
    if recalls(solved, baseline) != UNDECIDED or solved.seeds >= MAX_SEEDS:
        return False
    if solved.count == solved.seeds:
        return True
    worst = Solved(count=solved.count, seeds=MAX_SEEDS, epochs=())
    all_solve = Solved(count=MAX_SEEDS, seeds=MAX_SEEDS, epochs=())
    return _rarer(worst, all_solve) < level(ALPHA, MAX_SEEDS, MAX_SEEDS) / 2


def _rarer(solved: Solved, baseline: Solved) -> float:
    return fisher(*((s.seeds - s.count, s.seeds) for s in (solved, baseline)))
