"""What the rule of the atlas says of Standard against its own seeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from suffice.comparison.recall import RECALL
from suffice.comparison.results import Results
from suffice.comparison.scores import Scores, metric_in
from suffice.comparison.sufficiency import FAILS, FIRST, SUFFICES, UNDECIDED, decide, level
from suffice.comparison.two_way_interval import estimate
from suffice_papers.atlas.grid import NAMES, atlas_table, table_of
from suffice_papers.atlas.recipes import HEADS
from suffice_papers.atlas.standings import ALPHA, margin_of, metric_of
from suffice_papers.results import published
from suffice_papers.tables import BASELINE, SEEDS


@dataclass(frozen=True, kw_only=True)
class Null:
    """What is said of Standard against itself, from seeds that share nothing."""

    task: str  # task of the atlas
    seeds: int  # seeds of Standard
    fails: float  # share of the draws in which it does not suffice, though it is the same
    suffices: float  # share in which it suffices when it is worse by exactly the margin


NULL_DRAWS = 400


@cache
def nulls() -> tuple[Null, ...]:
    """Return the nulls of the tables of real data that have Standard's further seeds."""
    contents = (published(atlas_table(name)) for name in NAMES)
    return tuple(n for c in contents if c is not None and (n := null_of(c.results)) is not None)


def null_of(results: Results) -> Null | None:
    """Return how often the looks at 3 to 5 seeds of Standard against others of it decide falsely.

    Seeds are drawn without replacement, five against five; None with fewer than ten.
    """
    seeds = [cell.seed for cell in results.select(BASELINE, HEADS)]
    if results.task in RECALL or len(seeds) < 2 * SEEDS:
        return None
    task, margin = NAMES[table_of(results)], margin_of(results)[0]
    if margin is None:
        return None
    scores = Scores(results, metric_in(results, metric_of(results)))
    table, random = scores.table(BASELINE, HEADS, seeds), np.random.default_rng(0)
    wrong = dict.fromkeys((0.0, margin), 0)
    for _ in range(NULL_DRAWS):
        drawn = random.permutation(len(seeds))
        difference = table[drawn[:SEEDS]] - table[drawn[SEEDS : 2 * SEEDS]]
        for shift, false in ((0.0, FAILS), (margin, SUFFICES)):
            words = (
                decide(estimate(difference[:n] - shift), margin, level(ALPHA, n, SEEDS))
                for n in range(FIRST, SEEDS + 1)
            )
            wrong[shift] += next((word for word in words if word != UNDECIDED), "") == false
    return Null(
        task=task,
        seeds=len(seeds),
        fails=wrong[0.0] / NULL_DRAWS,
        suffices=wrong[margin] / NULL_DRAWS,
    )
