"""The verdict judged itself, on reruns of one thing: what it finds where nothing differs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb

import numpy as np

from suffice.errors import ConfigError
from suffice.measure.results import Results
from suffice.measure.scores import MIN_SEEDS, Scores
from suffice.measure.sentence import interval
from suffice.measure.statistics import Summary
from suffice.measure.sufficiency import LEVEL
from suffice.measure.two_way_interval import estimate_unpaired
from suffice.measure.verdict import INSUFFICIENT, SUFFICIENT, Verdict

SPLITS = 1000  # of the reruns into two groups, at most
SCORES = 10**8  # of all splits together, at most


def judge_reruns(results: Results, verdict: Verdict) -> tuple[int, str]:
    """Return an exit code and a sentence about two groups of reruns of one thing.

    All reruns are split again into two groups, in every way or in 1,000 ways, and each split is
    tested at 5%. Where nothing but chance differs, about 5% of the splits are told apart.

    Returns:
        0 if the groups that were given are not told apart, 10 if they are, and why that matters.
    """
    names = [name for name, _ in results.pairs()]
    scores = Scores(results, verdict.metric)
    tables = [scores.table(n, 0, list(scores.values(n, 0))) for n in names]
    if len(names) != 2 or min(map(len, tables)) < MIN_SEEDS:  # noqa: PLR2004
        raise ConfigError(f"--null: give two groups of {MIN_SEEDS} reruns at least of one thing.")
    estimated = estimate_unpaired(tables[1], tables[0])
    runs = np.concatenate(tables)
    alpha = 1.0 - LEVEL
    p_values = [
        float(estimate_unpaired(*split).p_value()) for split in _splits(runs, len(tables[1]))
    ]
    apart = sum(p < alpha for p in p_values)
    p_value, metric = float(estimated.p_value()), verdict.metric
    mean, half = float(estimated.mean), float(estimated.half_width(alpha))
    smallest = metric.in_unit(metric.margin(half))
    chance = (
        f"of {len(p_values):,} splits of all {len(runs)} reruns into two groups, {apart:,} "
        f"({apart / len(p_values):.0%}) are told apart at 5%"
    )
    summary = Summary(n=estimated.seeds, mean=mean, sd=None, low=mean - half, high=mean + half)
    difference = interval(summary, LEVEL, metric)
    if p_value < alpha:
        return INSUFFICIENT, (
            f"the reruns of {names[0]} and {names[1]} differ by more than chance: {difference}, "
            f"p = {p_value:.2g} without pairing; {chance}. Something else than the seed changed "
            "between them, so a verdict on such runs is not to be trusted."
        )
    return SUFFICIENT, (
        f"the reruns of {names[0]} and {names[1]} are not told apart: {difference}, p = "
        f"{p_value:.2g} without pairing; {chance}. These runs tell a margin of about "
        f"{smallest}, no smaller one."
    )


def _splits(runs: np.ndarray, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count, most = len(runs), max(20, min(SPLITS, SCORES // runs.size))
    if comb(count, first) <= most:
        chosen = map(list, combinations(range(count), first))
    else:
        rng = np.random.default_rng(0)
        chosen = islice(iter(lambda: list(rng.permutation(count)[:first]), None), most)
    for group in chosen:
        yield runs[group], np.delete(runs, group, axis=0)
