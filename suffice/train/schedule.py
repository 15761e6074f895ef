"""The learning rate of a step, as a share of the full rate."""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(done: float) -> float:  # noqa: ARG001 - one signature for every schedule
    """Return 1 at every point."""
    return 1.0


def cosine(done: float) -> float:
    """Return half a cosine, from 1 at done = 0 to 0 at done = 1.

    Example:
        >>> round(cosine(0.5), 6)
        0.5
    """
    return 0.5 * (1.0 + math.cos(math.pi * done))


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "cosine": cosine}


def share(step: float, *, total: int, warmup: float, schedule: str) -> float:
    """Return which share of the full learning rate a step uses.

    The first `round(warmup * total)` steps rise linearly and the last of them reaches 1; the
    schedule then runs over the others, so a cosine would reach 0 at the step after the last.

    Args:
        step: index of the optimiser step over the whole run, from 0.
        total: optimiser steps of the whole run.
        warmup: share of `total` that warms up, in [0, 1).
        schedule: a name in SCHEDULES.

    Example:
        >>> [share(s, total=4, warmup=0.5, schedule="cosine") for s in range(4)]
        [0.5, 1.0, 1.0, 0.5]
    """
    rising = round(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / (total - rising))
