"""Which margins seeds and test rows resolve, as a range: before training, and after two seeds."""

from __future__ import annotations

import math

import numpy as np

from suffice.comparison.metrics import metric_of
from suffice.comparison.plan import Plan, describe, same_training
from suffice.comparison.results import Results
from suffice.comparison.scores import MIN_SEEDS, Scores, difference_table
from suffice.comparison.sufficiency import LEVEL, USUAL, level
from suffice.comparison.two_way_interval import ROWS_OVERLAP, quantile
from suffice.data.survey import Survey
from suffice.train.recipes import recipe
from suffice.utils.files import packaged

EVIDENCE = ("choose", "evidence.json")  # what the published comparisons show
FIRST_SEEDS = 2  # after which the spread is known roughly
BEST = 0.99  # accuracy that is seldom exceeded
USUAL_SPREAD = 2.0  # that seeds differ by, as a multiple of what the test rows alone explain
MOST_SPREAD = 7.0  # the same, of the published recipes
PREDICTED = 0.05  # of each side of the range

Range = tuple[float, float]


def before_training(survey: Survey, plan: Plan) -> Range:
    """Return the least and the largest margin that the planned seeds probably resolve.

    A mechanism as good as the baseline is decided if half of its interval is below the margin; a
    better one sooner. Where the recipe has published trainings, the range is that of their spread,
    which few seeds may underestimate: its upper end is at least that of rows alone.
    Else two models of accuracy a differ on about a (1 - a) of the rows, half as many as if they
    answered independently, which is the variance of a difference on one row. The lower end is that
    of models that are right on `BEST` of the rows, whose seeds differ by no more than these rows
    explain; the upper end that of models that guess half of them, or the most frequent class, and
    whose seeds differ by `USUAL_SPREAD` times as much.
    """
    published = _published(plan)
    if published is not None:
        variance, by_rows, free = published
        low, high = (_range(plan, of, free) for of in (variance, max(variance, by_rows)))
        return low[0], high[1]
    seeds, rows = seeds_of(plan), survey.tested or survey.rows["test"]
    answers = rows * seeds if plan.folds is None else rows / (1 + ROWS_OVERLAP / (plan.folds - 1))
    worst = min(BEST, max(0.5, survey.majority or 0.0))
    low, high = (math.sqrt(share * (1.0 - share) / answers) for share in (BEST, worst))
    first, last = _alphas(plan, seeds)
    ends = quantile(last, rows - 1) * low, quantile(first, seeds - 1) * USUAL_SPREAD * high
    return float(ends[0]), float(ends[1])


def after_two_seeds(results: Results, plan: Plan) -> Range | None:
    """Return the same range from two seeds of every mechanism; None where none or none differ.

    Variances of the differences to the baseline are averaged over the mechanisms.
    """
    scores, estimates = Scores(results, metric_of(plan.metric)), []
    for mechanism, heads in results.pairs():
        if mechanism == plan.baseline:
            continue
        pairing, table = difference_table(scores, mechanism, heads)
        first = [place for place, seed in enumerate(pairing.seeds) if seed < FIRST_SEEDS]
        estimate = scores.estimate(table[first]) if len(first) == FIRST_SEEDS else None
        if estimate is not None:
            estimates.append(estimate)
    if not estimates or not sum(float(one.standard_error) for one in estimates):
        return None
    of_seeds, of_rest, of_rows = (
        float(np.mean([getattr(one, name) for one in estimates]))
        for name in ("seed_variance", "least_variance", "row_variance")
    )
    if plan.folds is not None:  # further seeds test other rows
        of_rest, of_rows = of_rows, 0.0
    unsure = 4.0 / math.sqrt(estimates[0].rows or 1) * (of_rows + of_rest)  # two of its errors
    by_rows = max(0.0, of_rows - unsure), of_rows
    return _range(plan, FIRST_SEEDS * of_seeds, len(estimates), FIRST_SEEDS * of_rest, by_rows)


def _range(
    plan: Plan, of_seed: float, free: int, of_rest: float = 0.0, of_rows: Range = (0.0, 0.0)
) -> Range:
    """Return the half widths to expect of intervals over the planned seeds.

    The variance of these seeds is by chance not `of_seed`, with `free` degrees of freedom: their
    ratio is between quantiles of F. What rows explain, `of_rest`, bounds it from below, and
    `MOST_SPREAD` times that from above. `of_rows` are ends of what no further seed removes.
    """
    from scipy.special import fdtri

    seeds = seeds_of(plan)
    first, last = _alphas(plan, seeds)
    least, most = (
        of_seed * float(fdtri(seeds - 1, free, share)) for share in (PREDICTED, 1 - PREDICTED)
    )
    normal = quantile(last, math.inf)
    if of_rest:
        least, most = 0.0, max(of_rest, min(most, MOST_SPREAD**2 * of_rest))
    low = max(quantile(last, seeds - 1) ** 2 * least, normal**2 * of_rest) / seeds
    high = quantile(first, seeds - 1) ** 2 * most / seeds
    return tuple(
        float(math.sqrt(end + normal**2 * by_rows))
        for end, by_rows in zip((low, high), of_rows, strict=True)
    )


def _published(plan: Plan) -> tuple[float, float, int] | None:
    name, scale = plan.recipe.name, plan.recipe.scale
    for spread in packaged(*EVIDENCE)["spreads"]:
        if (spread["recipe"], spread["scale"]) == (name, scale) and plan.folds is None:
            trained = same_training(describe(recipe(name, scale=scale)), plan.recipe)
            return (spread["variance"], spread["by_rows"], spread["free"]) if trained else None
    return None


def seeds_of(plan: Plan) -> int:
    """Return the seeds that give a verdict: the planned ones, or the usual number."""
    return plan.seeds if plan.seeds >= MIN_SEEDS else USUAL


def _alphas(plan: Plan, seeds: int) -> Range:
    candidates = sum(mechanism != plan.baseline for mechanism, _ in plan.pairs)
    steps = (1.0 - LEVEL) / max(1, candidates), 1.0 - LEVEL
    if plan.auto and seeds <= plan.seeds:
        return level(steps[0], seeds, plan.seeds), level(steps[1], seeds, plan.seeds)
    return steps
