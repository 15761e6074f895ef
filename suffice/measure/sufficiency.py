"""Whether a difference stays within the margin, and what would decide where it is open."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from suffice.measure.sequential import level
from suffice.measure.two_way_interval import EXACT, Estimate

LEVEL = 0.95  # confidence behind "suffices", over all mechanisms that could be named together
TAIL, TAIL_WEIGHT = 0.05, 8.0  # skewness of a mean to allow for, and what each unit beyond widens
CAP = 1000  # more additional seeds than this are not worth naming
SUFFICES, FAILS, UNDECIDED = "suffices", "does not suffice", "undecided"
UNLEARNED, TOO_EASY = "baseline not shown to have learned", "too easy to tell"


def decide(found: Estimate, margin: float, alpha: float) -> str:
    """Return whether a difference is within the margin, by its interval of 1 - alpha.

    Returns:
        "suffices" if the whole interval is above -margin, with more to spare where a few rows hold
        most of the loss; "does not suffice" if it is below, else "undecided".

    Example:
        >>> from suffice.measure.two_way_interval import estimate
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
    """Return the level of one interval for alpha over all looks."""
    return level(alpha, found.seeds, looks) if found.seeds in looks else alpha


def step_down(tests: Sequence[Callable[[float], bool]], alpha: float) -> float:
    """Return the level of the last step of Holm's procedure over tests.

    The tests that pass at that level are those that pass together: the chance that any of them
    passes falsely is at most alpha, and each other one is open at the very same level.

    Args:
        tests: functions that return whether a test passes at a level.
        alpha: level of all tests together.

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

    Returns:
        The smallest number of additional seeds, or None if `cap` more are too few.
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
