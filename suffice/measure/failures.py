"""Seeds whose training failed, and the rate of failure that so many seeds leave open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

FAR = 5.0  # margins that a failed seed lies below the others, at least
OUTLIER = 1e-3  # chance that a sound seed lies so far below the others by chance
ABOVE = 2.0  # standard errors of the rows that a model which learned is above the floor


def upper_rate(events: int, trials: int, level: float = 0.95) -> float:
    """Return the largest rate that so many events in so many trials leave open.

    It is Clopper and Pearson's exact one-sided bound: at a larger rate so few events have a chance
    below 1 - level. Without any event it is 1 - (1 - level)^(1 / trials).

    Example:
        >>> [round(upper_rate(0, trials), 3) for trials in (3, 5, 14)]
        [0.632, 0.451, 0.193]

    Source: Clopper and Pearson 1934, "The use of confidence or fiducial limits illustrated in the
    case of the binomial".
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
    nothing, while the baseline is; or far below the mechanism's other seeds and the baseline's. Far
    is `FAR` margins, and more than chance: the seeds are taken from the best down, and the first
    one beyond the prediction interval of those above it and of the baseline's (at level `OUTLIER`,
    the spread of both pooled) has failed with all below it.

    Args:
        values: by seed, oriented so that more is better.
        baseline: values of the baseline's seeds that did not fail; none where `values` are its own.
        margin: of the comparison.
        noise: standard error that the test rows alone give a value.
        floor: value of a model that learned nothing; None where it is not known.

    Example:
        >>> failed_seeds({0: 0.997, 1: 0.995, 2: 0.601}, [0.998, 0.999, 0.998], margin=0.01)
        (2,)
    """
    finite = {seed: value for seed, value in values.items() if math.isfinite(value)}
    order = sorted(finite, key=finite.__getitem__, reverse=True)
    failed = set(values) - set(finite)
    if floor is not None:
        failed |= {
            seed
            for seed, value in finite.items()
            if value <= floor + ABOVE * noise
            and (others := baseline or [finite[other] for other in order if other != seed])
            and np.mean(others) - value > _far(0.0, 1, noise)
        }
    group: list[float] = []
    for place, seed in enumerate(order):
        freedom = max(len(group) - 1, 0) + max(len(baseline) - 1, 0)
        if group and freedom:
            squares = sum(len(part) * np.var(part) for part in (group, baseline) if len(part))
            spread = math.sqrt(squares / freedom * (1.0 + 1.0 / len(group)))
            below = min(np.mean(part) for part in (group, baseline) if len(part)) - finite[seed]
            if below > max(FAR * margin, _far(spread, freedom, noise)):
                failed |= set(order[place:])
                break
        group.append(finite[seed])
    return tuple(sorted(failed))


def _far(spread: float, freedom: int, noise: float) -> float:
    """Return the distance that chance exceeds with `OUTLIER`, by the seeds or by the rows."""
    from scipy.special import ndtri, stdtrit

    by_rows = -float(ndtri(OUTLIER)) * math.sqrt(2.0) * noise
    return max(-float(stdtrit(freedom, OUTLIER)) * spread, by_rows)
