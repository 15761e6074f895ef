"""Seeds whose training failed, and the rate of failure that so many seeds leave open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

FAR = 5.0  # margins that a failed seed lies below the others, at least
OUTLIER = 1e-3  # chance that a sound seed lies so far below the others
ABOVE = 2.0  # standard errors of the rows that a model which learned is above the floor


def upper_rate(events: int, trials: int, level: float = 0.95) -> float:
    """Return the largest rate that so many events in so many trials leave open.

    Example:
        >>> [round(upper_rate(0, trials), 3) for trials in (3, 5, 14)]
        [0.632, 0.451, 0.193]

    Source: Clopper and Pearson 1934, the exact bound, one-sided.
    """
    from scipy.stats import beta

    return 1.0 if events >= trials else float(beta.ppf(level, events + 1, trials - events))


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

    Args:
        values: by seed, oriented so that more is better.
        baseline: of the baseline's seeds that did not fail; none where `values` are its own.
        margin: of the comparison.
        noise: standard error that the test rows alone give a value.
        floor: value of a model that learned nothing; None where it is not known.

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
