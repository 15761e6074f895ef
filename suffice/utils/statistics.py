"""Statistics over seeds: intervals, pairs, corrected p values, and seeds that failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb

import numpy as np

from suffice.errors import ConfigError

FAR = 5.0  # margins that a failed seed lies below the others, at least
OUTLIER = 1e-3  # chance that a sound seed lies so far below the others
ABOVE = 2.0  # standard errors of the rows that a model which learned is above the floor
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
    """Return t such that `level` of Student's t lies within -t to t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def summarise(values: Sequence[float], *, level: float = 0.95) -> Summary:
    """Return mean, sample sd and the t confidence interval of the mean.

    One value has no sd and no interval. Nor have values of which one is not finite, such as the
    loss of a training that ran away.
    """
    if not values:
        raise ConfigError("no values to summarise; give at least one.")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level={level:g} is not a confidence; give a value between 0 and 1.")
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

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values)
    steps = np.arange(len(order), 0, -1) * np.take(p_values, order)
    rising = np.maximum.accumulate(np.minimum(1.0, steps))
    return tuple(rising[np.argsort(order)].tolist())


def _mean(values: Sequence[float]) -> float:
    """Return the mean; equal values have exactly their own value as mean."""
    if not all(map(math.isfinite, values)):
        return sum(values)
    return values[0] + math.fsum(value - values[0] for value in values) / len(values)


def _sd(values: Sequence[float], mean: float) -> float:
    """Return the sample sd; exactly 0 where values differ by rounding only."""
    if max(values) - min(values) <= EXACT:
        return 0.0
    # not a sum of squares: perplexities of runaway trainings would overflow it
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)


def upper_rate(events: int, trials: int, level: float = 0.95) -> float:
    """Return the upper confidence bound of a rate, after `events` in `trials`.

    Example:
        >>> [round(upper_rate(0, trials), 3) for trials in (3, 5, 14)]
        [0.632, 0.451, 0.193]

    Source: Clopper and Pearson 1934, the exact bound, one-sided.
    """
    from scipy.special import betaincinv

    return 1.0 if events >= trials else float(betaincinv(events + 1, trials - events, level))


def sound_seeds(events: int, trials: int, rate: float) -> int:
    """Return how many further trials without an event bring the upper bound down to a rate."""
    return next(more for more in count() if upper_rate(events, trials + more) <= rate)


def fisher(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Return the p value that events are as rare in our trials as in theirs, or rarer.

    Example:
        >>> [round(fisher((events, 5), (0, 5)), 4) for events in (1, 4)]
        [0.5, 0.0238]

    Source: Fisher's exact test, one-sided.
    """
    events = ours[0] + theirs[0]
    ways = sum(comb(ours[1], k) * comb(theirs[1], events - k) for k in range(ours[0], events + 1))
    return ways / comb(ours[1] + theirs[1], events)


def failure_p_value(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Return the p value that failures are as rare in our trials as in theirs, or rarer.

    It is Fisher's, or for all against none the largest chance of that at any common rate, which is
    smaller: all of three against none of three has 1/64 and not 1/20.
    """
    (failed, n), (of_theirs, m) = ours, theirs
    p_value = fisher(ours, theirs)
    if failed == n and not of_theirs:
        p_value = min(p_value, (n / (n + m)) ** n * (m / (n + m)) ** m)
    return p_value


def failed_seeds(
    values: Mapping[int, float],
    baseline: Sequence[float] = (),
    *,
    margin: float,
    noise: float = 0.0,
    floor: float | None = None,
) -> tuple[int, ...]:
    """Return the seeds of a mechanism whose training failed, in order.

    A seed failed if its value is not finite; or not clearly above what a model scores that learned
    nothing, while the baseline is; or far below the mechanism's other seeds and the baseline's:
    `FAR` margins, and beyond the prediction interval at level `OUTLIER`. Seeds are taken from the
    best down: the first that is far below those above it has failed, with all below.

    More is better in `values`; `baseline` are its seeds that did not fail, none where `values` are
    its own; `noise` is the standard error by the test rows, `floor` the value without learning.

    Example:
        >>> failed_seeds({0: 0.997, 1: 0.995, 2: 0.601}, [0.998, 0.999, 0.998], margin=0.01)
        (2,)
    """
    from scipy.special import ndtri, stdtrit

    order = sorted(filter(lambda s: math.isfinite(values[s]), values), key=lambda s: -values[s])
    failed = set(values) - set(order)
    by_rows = -float(ndtri(OUTLIER)) * math.sqrt(2.0) * noise
    group: list[float] = []
    for place, seed in enumerate(order):
        value, parts = values[seed], [part for part in (group, baseline) if len(part)]
        others = baseline if len(baseline) else [values[s] for s in order if s != seed]
        if floor is not None and value <= floor + ABOVE * noise and len(others):
            failed |= {seed} if np.mean(others) - value > by_rows else set()
        freedom = sum(len(part) - 1 for part in parts)
        if group and freedom:
            squares = sum(len(part) * np.var(part) for part in parts)
            spread = math.sqrt(squares / freedom * (1.0 + 1.0 / len(group)))
            by_seeds = -float(stdtrit(freedom, OUTLIER)) * spread
            if min(map(np.mean, parts)) - value > max(FAR * margin, by_seeds, by_rows):
                return tuple(sorted({*failed, *order[place:]}))
        group.append(value)
    return tuple(sorted(failed))
