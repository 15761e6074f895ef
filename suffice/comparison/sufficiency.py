"""Whether a difference is within the margin, what would decide, and looks after each seed."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from suffice.comparison.results import Results
from suffice.comparison.two_way_interval import EXACT, Estimate
from suffice.errors import ConfigError

LEVEL = 0.95  # confidence behind "suffices", over all mechanisms that could be named together
TAIL, TAIL_WEIGHT = 0.05, 8.0  # skewness of a mean to allow for, and what each unit beyond widens
CAP = 1000  # more additional seeds than this are not worth naming
SUFFICES, FAILS, UNDECIDED = "suffices", "does not suffice", "undecided"
UNLEARNED, TOO_EASY = "baseline not shown to have learned", "too easy to tell"


def decide(found: Estimate, margin: float, alpha: float) -> str:
    """Return whether the interval of 1 - alpha of a difference is above -margin, below, or neither.

    Where a few rows hold most of the loss, it must be above by more (`tail_factor`).

    Example:
        >>> from suffice.comparison.two_way_interval import estimate
        >>> decide(estimate([[0.0], [0.002], [0.001]]), 0.01, 0.05)
        'suffices'
    """
    mean, half = float(found.mean), float(found.half_width(alpha))
    if mean - half > EXACT - margin:
        return SUFFICES if mean - tail_factor(found) * half > EXACT - margin else UNDECIDED
    return FAILS if mean + half < -margin - EXACT else UNDECIDED


def tail_factor(found: Estimate) -> float:
    """Return by how much further the margin must be where a few rows hold most of a loss.

    The interval of a mean takes it to be normal. Where losses have a long tail, rows that happen to
    lack it have a small mean, a small spread and a small skewness. `python -m benchmarks.verdict`
    prints how often lognormal losses at the margin suffice.
    """
    return 1.0 + TAIL_WEIGHT * max(0.0, -float(found.skewness) - TAIL)


def level_over_looks(found: Estimate, alpha: float, looks: tuple[int, ...]) -> float:
    return level(alpha, found.seeds, looks) if found.seeds in looks else alpha


def step_down(tests: Sequence[Callable[[float], bool]], alpha: float) -> float:
    """Return the level of the last step of Holm's procedure over tests.

    The tests that pass at that level are those that pass together: the chance that any of them
    passes falsely is at most alpha, and each other one is open at the very same level.

    Example:
        >>> p_values = [0.01, 0.04, 0.02]
        >>> step_down([lambda level, p=p: p <= level for p in p_values], 0.05)
        0.05
        >>> step_down([lambda level, p=p: p <= level for p in [0.02, 0.04, 0.03]], 0.05)
        0.016666666666666666

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    passed = 0
    while passed < len(tests):
        if sum(test(alpha / (len(tests) - passed)) for test in tests) <= passed:
            return alpha / (len(tests) - passed)
        passed += 1
    return alpha


def more_seeds(found: Estimate, distance: float, alpha: float, cap: int) -> int | None:
    """Return how many more seeds bring the half width below a distance, if the spread stays.

    None if `cap` more are too few.
    """

    def enough(more: int) -> bool:
        return distance - float(found.half_width_of(found.seeds + more, alpha)) > EXACT

    if cap < 1 or not enough(cap):
        return None
    return bisect_left(range(cap), True, key=enough)


def more_rows(found: Estimate, distance: float, alpha: float) -> int | None:
    """Return how many more rows bring the half width below a distance, if the spread stays.

    What the seeds vary by is taken not to fall. None where that alone is too wide, or without rows.
    """
    if found.rows is None or distance <= EXACT:
        return None
    half, alone = (float(e.half_width(alpha)) for e in (found, replace(found, row_variance=0.0)))
    if alone >= distance:
        return None
    times = (half**2 - alone**2) / (distance**2 - alone**2)
    return max(1, math.ceil(found.rows * (times - 1.0)))


def too_few_rows(found: Estimate, distance: float, alpha: float) -> bool:
    """Return whether the rows alone leave the interval wider than a distance."""
    from scipy.special import ndtri

    return -float(ndtri(alpha / 2)) * math.sqrt(float(found.row_variance)) >= distance > EXACT


USUAL = 5  # seeds of a command that names none
FIRST = 3  # seeds before the first look
POWER = 0.7  # of the spending function: the share t of the seeds spends the share t^POWER of alpha
HOPELESS = 0.15  # chance of a decision below which no further seed is trained

_POINTS = 601  # of the grid on which the density between two looks is integrated


@lru_cache(maxsize=256)
def level(alpha: float, seeds: int, most: int | tuple[int, ...]) -> float:
    """Return the level of the interval after `seeds` seeds, for alpha over all looks together.

    After each seed from the third on, or at the numbers of seeds that were declared, an interval
    is looked at, until one decides. An interval of 1 - `level` at each look covers the truth at all
    with 1 - alpha (a repeated confidence interval), so that one may stop at any. The share t of the
    seeds spends t^0.7 of alpha. The looks at a mean over s and over n > s seeds correlate with
    sqrt(s / n), and more where they share test rows, which makes the intervals only safer.

    Args:
        alpha: error rate of both sides, over all looks.
        seeds: number of seeds at the look.
        most: seeds of the last look, after one at each number from FIRST on; or all numbers that
            are looked at, rising.

    Example:
        >>> [round(level(0.05, seeds, 5), 4) for seeds in (3, 4, 5)]
        [0.035, 0.0207, 0.0201]

    Source: Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"; Jennison and
    Turnbull 2000, "Group sequential methods", chapters 7 and 9 (the levels of a t test are those of
    a normal one).
    """
    looks = most if isinstance(most, tuple) else tuple(range(FIRST, most + 1))
    if seeds not in looks or not 0.0 < alpha < 1.0:
        raise ConfigError(
            f"alpha={alpha}, seeds={seeds}, most={most}; give {FIRST} <= seeds <= most and an "
            "alpha between 0 and 1."
        )
    return _levels(alpha, looks)[looks.index(seeds)]


@lru_cache(maxsize=64)
def _levels(alpha: float, looks: tuple[int, ...]) -> tuple[float, ...]:
    """Return the level of each look, by integrating the path of the mean between the bounds."""
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    times = np.array(looks) / looks[-1]
    spent = alpha * times**POWER
    bound = -float(ndtri(spent[0] / 2)) * np.sqrt(times[0])
    levels = [float(spent[0])]
    path = np.linspace(-bound, bound, _POINTS)
    density = _normal(path / np.sqrt(times[0])) / np.sqrt(times[0])
    for number in range(1, len(times)):
        step = np.sqrt(times[number] - times[number - 1])
        weight = density * _trapezoid(path)

        def outside(at: float, path=path, step=step, weight=weight) -> float:
            return float(weight @ (ndtr((path - at) / step) + ndtr((-at - path) / step)))

        wanted = spent[number] - spent[number - 1]
        bound = brentq(lambda at: outside(at) - wanted, 0.0, 12.0)  # noqa: B023
        levels.append(float(2 * ndtr(-bound / np.sqrt(times[number]))))
        following = np.linspace(-bound, bound, _POINTS)
        density = _normal((following[:, None] - path) / step) @ weight / step
        path = following
    return tuple(levels)


def _normal(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def looks_of(results: Results) -> tuple[int, ...]:
    """Return the numbers of seeds at which a verdict is looked at; none where there is one look."""
    if results.external is not None:
        return results.external.looks
    most = most_seeds(results)
    return () if most is None else tuple(range(FIRST, most + 1))


def most_seeds(results: Results) -> int | None:
    """Return up to how many seeds are added while a verdict is looked at; None if none are.

    What `--seeds auto` trains is in the results. Otherwise their commands tell: seeds were added if
    the first command asked for fewer than there are, and `suffice reproduce` adds to every table
    until it has `USUAL`.
    """
    if results.most_seeds is not None or not results.command.startswith("suffice "):
        return results.most_seeds
    counts = Counter((cell.mechanism, cell.num_heads) for cell in results.cells).values()
    is_table = results.command.startswith("suffice reproduce")
    most = max([*counts, *[USUAL] * is_table])
    asked = re.search(r"--seeds[ =](\d+)", results.command.partition("\n")[0])
    added = (int(asked[1]) if asked else USUAL) < most or (is_table and min(counts) < most)
    return most if added else None


def _trapezoid(points: np.ndarray) -> np.ndarray:
    weights = np.full(len(points), points[1] - points[0])
    weights[[0, -1]] /= 2
    return weights
