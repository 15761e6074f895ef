"""Statistics over seeds: intervals, paired tests, and how many seeds would be enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suffice.errors import ConfigError

EXACT = 1e-12  # differences of accuracies below this are rounding, not a difference


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean and spread of values over seeds."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Differences between two mechanisms, seed by seed."""

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    left_out: tuple[int, ...]


def t_quantile(level: float, freedom: int) -> float:
    """Return t such that `level` of Student's t lies within -t to t.

    Example:
        >>> round(t_quantile(0.95, 4), 3)
        2.776
    """
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, freedom))


def summarise(values: Sequence[float], *, level: float = 0.95) -> Summary:
    """Return mean, sample sd and the t confidence interval of the mean.

    One value gives no sd and no interval: a single seed says nothing about spread. Nor do values
    of which one is not finite, such as the loss of a training that ran away.

    Example:
        >>> summary = summarise([0.25, 0.5, 0.75])
        >>> summary.mean, summary.sd
        (0.5, 0.25)
    """
    if not values:
        raise ConfigError("no values to summarise; give at least one.")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level={level:g} is no confidence; give a value between 0 and 1.")
    n = len(values)
    mean = _mean(values)
    if n == 1 or not math.isfinite(mean):
        return Summary(n=n, mean=mean, sd=None, low=None, high=None)
    sd = _sd(values, mean)
    half = half_width(sd, n, level=level)
    return Summary(n=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def half_width(sd: float, n: int, *, level: float = 0.95) -> float:
    """Return half the width of the t interval of a mean of n values; exactly 0 for sd 0."""
    return 0.0 if sd == 0.0 else t_quantile(level, n - 1) * sd / math.sqrt(n)


def pair(candidate: Mapping[int, float], baseline: Mapping[int, float]) -> Pairing:
    """Subtract baseline from candidate for every seed that both have.

    Example:
        >>> pair({0: 0.75, 1: 0.5}, {0: 0.25, 2: 0.5})
        Pairing(seeds=(0,), differences=(0.5,), left_out=(1, 2))
    """
    seeds = tuple(sorted(candidate.keys() & baseline.keys()))
    return Pairing(
        seeds=seeds,
        differences=tuple(candidate[seed] - baseline[seed] for seed in seeds),
        left_out=tuple(sorted(candidate.keys() ^ baseline.keys())),
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p values, in the order given.

    Comparing them with alpha keeps the chance of any false claim in the family below alpha.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        (0.03, 0.06, 0.06)

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    floor = 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = floor
    return tuple(adjusted)


def _mean(values: Sequence[float]) -> float:
    """Return the mean; equal values have exactly their own value as mean."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    return values[0] + math.fsum(value - values[0] for value in values) / len(values)


def _sd(values: Sequence[float], mean: float) -> float:
    """Return the sample sd; exactly 0 where values differ by rounding only."""
    if max(values) - min(values) <= EXACT:
        return 0.0
    # not a sum of squares: that of perplexities of runaway trainings is no float
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)
