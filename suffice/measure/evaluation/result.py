"""What an evaluation found: named scores, each with its standard error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Score:
    """One figure of an evaluation.

    Args:
        name: of the scorer.
        value: a share from 0 to 1, or what the name says.
        standard_error: of the value over the items; None where it has none.
        told: what is computed, in a line.
    """

    name: str
    value: float
    standard_error: float | None
    told: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured on what.

    Args:
        task: its name.
        items: how many entered the scores.
        of: how many there are.
        source: where they come from.
        scores: the figures.
    """

    task: str
    items: int
    of: int
    source: str
    scores: tuple[Score, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as plain data."""
        return asdict(self)


def mean(name: str, values: Sequence[float], told: str) -> Score:
    """Return the mean of a value of each item, and the standard error of that mean.

    Example:
        >>> score = mean("accuracy", [1.0, 0.0, 1.0, 1.0], "share of right answers")
        >>> score.value, score.standard_error
        (0.75, 0.25)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Score(name=name, value=statistics.fmean(values), standard_error=error, told=told)


def exponential(name: str, values: Sequence[float], told: str) -> Score:
    """Return e to the mean of a value of each item; its error is carried along to first order."""
    inner = mean(name, values, told)
    value = math.exp(min(inner.value, 700.0))  # of floats
    error = None if inner.standard_error is None else value * inner.standard_error
    return Score(name=name, value=value, standard_error=error, told=told)
