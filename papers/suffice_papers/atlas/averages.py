"""Mechanisms over several tasks: a mean of their differences to Standard, and their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from suffice.utils.statistics import Summary, t_quantile
from suffice_papers.atlas.standings import Standing
from suffice_papers.tables import BASELINE

MIN_TASKS = 3  # tasks of a mechanism that an average is taken over
PRIOR = 4  # degrees of freedom of the spread that the mechanisms of a task share
DRAWS = 4_000  # of the averages, for the ranks they may have


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mechanism over tasks: the mean of its differences to Standard, were they drawn again."""

    mechanism: str  # see `label`
    tasks: int  # tasks that it was trained on
    # the mean as a share of Standard's gain, with the 95% interval of a task like these
    difference: Summary
    between: float  # standard deviation of the true differences between tasks
    ranks: tuple[int, int] = (0, 0)  # the 2.5% and 97.5% quantile of its rank among all, 1 is best


def averages(rows: Iterable[Standing]) -> list[Average]:
    """Return the mechanisms by their mean difference, best first.

    A random-effects model: each task has a different effect around the mechanism's mean, and
    is measured with the error of its seeds, whose variance is drawn to the median one of its task.

    Source: DerSimonian and Laird 1986 for the variance between tasks; Hartung and Knapp 2001 for
        the interval.
    """
    by_mechanism: dict[str, dict[str, Summary]] = {}
    spreads: dict[str, list[float]] = {}
    standard: dict[str, float] = {}
    for row in rows:
        if not row.gain or row.same_as:
            continue
        if row.mechanism == BASELINE and row.quality.sd is not None:
            standard[row.task] = (row.quality.sd / row.gain) ** 2 / row.quality.n
        elif row.difference is not None and row.difference.sd is not None:
            mean, sd = row.difference.mean / row.gain, row.difference.sd / row.gain
            shares = by_mechanism.setdefault(row.mechanism, {})
            shares[row.task] = replace(row.difference, mean=mean, sd=sd)
            spreads.setdefault(row.task, []).append(sd**2)
    pooled = {task: median(values) for task, values in spreads.items()}
    means = [
        _average(mechanism, shares, pooled)
        for mechanism, shares in by_mechanism.items()
        if len(shares) >= MIN_TASKS
    ]
    means.sort(key=lambda one: -one[0].difference.mean)
    return _ranked(means, standard)


_Pooled = tuple[Average, dict[str, float]]
"""An average, and the weights of its tasks."""


def _average(mechanism: str, shares: Mapping[str, Summary], pooled: Mapping[str, float]) -> _Pooled:
    effects = np.array([summary.mean for summary in shares.values()])
    # a difference of exactly nothing is measured as well as one of a thousandth of a point
    variances = np.array([max(_shrunk(s, pooled[task]) / s.n, 1e-10) for task, s in shares.items()])
    weights, count = 1 / variances, len(shares)
    mean = float(np.average(effects, weights=weights))
    excess = float(weights @ (effects - mean) ** 2) - (count - 1)
    between = max(0.0, excess / (weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variances + between)
    mean = float(np.average(effects, weights=weights))
    scale = max(1.0, float(weights @ (effects - mean) ** 2) / (count - 1))
    error = float(np.sqrt(scale / weights.sum()))
    half = t_quantile(0.95, count - 1) * error
    summary = Summary(n=count, mean=mean, sd=error, low=mean - half, high=mean + half)
    average = Average(mechanism=mechanism, tasks=count, difference=summary, between=between**0.5)
    return average, dict(zip(shares, weights / weights.sum(), strict=True))


def _shrunk(summary: Summary, pooled: float) -> float:
    """Return the variance over seeds, drawn to the pooled one: two or three tell little of it."""
    freedom = summary.n - 1
    return (freedom * (summary.sd or 0.0) ** 2 + PRIOR * pooled) / (freedom + PRIOR)


def _ranked(means: Sequence[_Pooled], standard: Mapping[str, float]) -> list[Average]:
    """Return averages with the ranks they may have, Standard drawn once for all of a task.

    Args:
        means: averages with the weights of their tasks.
        standard: variance of the mean of Standard by task, which all differences there share.
    """
    if not means:
        return []
    random = np.random.default_rng(0)
    tasks = sorted({task for _, weights in means for task in weights})
    common = np.array([[weights.get(t, 0.0) for t in tasks] for _, weights in means])
    common = common * np.sqrt([standard.get(task, 0.0) for task in tasks])
    centre = np.array([average.difference.mean for average, _ in means])
    error = np.array([average.difference.sd for average, _ in means])
    own = np.sqrt(np.maximum(0.0, error**2 - (common**2).sum(axis=1)))
    draws = centre - random.standard_normal((DRAWS, len(tasks))) @ common.T
    draws += own * random.standard_normal((DRAWS, len(means)))
    ranks = (-draws).argsort(axis=1).argsort(axis=1) + 1
    low, high = np.quantile(ranks, (0.025, 0.975), axis=0)
    return [
        replace(average, ranks=(int(a), int(b)))
        for (average, _), a, b in zip(means, low, high, strict=True)
    ]
