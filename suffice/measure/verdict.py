"""The verdict which mechanism suffices: intervals over seeds and test rows, never a maximum.

Every (mechanism, heads) is compared with the baseline at equal heads, by the metric that was asked
for. Two claims are separate: that it suffices (its loss is shown to stay within the margin) and
that it differs (better or worse, whatever the margin). Before both stands whether there is anything
to compare: a baseline that learned, on a task that leaves room to be worse, and seeds that all
learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from suffice.errors import ConfigError, unknown
from suffice.measure.answers import Answers, joined, majority_baseline, spread
from suffice.measure.metrics import (
    METRICS,
    Metric,
    metric_of,
    own_metric,
    share_metric,
    value_in,
)
from suffice.measure.results import Cell, Results, check_margin
from suffice.measure.sequential import HOPELESS, level, looks_of
from suffice.measure.statistics import ABOVE, Pairing, Summary, failed_seeds, holm, pair, upper_rate
from suffice.measure.timing import summarise_times
from suffice.measure.two_way_interval import (
    EXACT,
    Estimate,
    bounded,
    estimate,
    estimate_folds,
    estimate_rows,
    estimate_unpaired,
    widen_for_folds,
)

COSTS = ("flops", "latency", "parameters")
ORDER = "order"  # of results of another program, which tell no cost: as they were named


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one (mechanism, heads).

    Args:
        by: "flops" (attention layers, one sample), "latency" (median seconds of one batch),
            "parameters" (whole model) or "order" (the place among the names that were given).
        value: the price in that unit.
        order: sort key: the value, then parameters, then name, then heads.
    """

    by: str
    value: float
    order: tuple[float, int, str, int]


def cost_of(results: Results, mechanism: str, num_heads: int, by: str) -> Cost:
    """Return what one trained (mechanism, heads) costs."""
    cell = results.select(mechanism, num_heads)[0]
    if by == ORDER:
        place = results.pairs().index((mechanism, num_heads))
        value = math.inf if mechanism == results.baseline else float(place)
    elif by == "latency":
        speed = results.speed(mechanism, num_heads)
        if speed is None:
            raise ConfigError(
                f"the latency of {mechanism} with num_heads={num_heads} was not measured; "
                "order by flops or parameters instead."
            )
        value = summarise_times(speed.latency).median
    else:
        value = float(cell.flops if by == "flops" else cell.parameters_model)
    return Cost(by=by, value=value, order=(value, cell.parameters_model, mechanism, num_heads))


LEVEL = 0.95  # confidence behind "suffices", over all mechanisms that could be named together
ALPHA = 0.005  # chance of any false "better" or "worse" in one comparison
CAP = 1000  # more additional seeds than this are not worth naming
MIN_SEEDS = 3  # fewer give no interval: two accuracies of a small test set often agree by chance
MIN_ROWS = 30  # of one seed; fewer give no interval

SUFFICES, FAILS, UNDECIDED = "suffices", "does not suffice", "undecided"
UNLEARNED, TOO_EASY = "nothing was learned", "too easy to tell"
CEILINGS = {"share": 1.0, "loss": 0.0, "perplexity": 0.0}  # best oriented value of a kind of metric


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One (mechanism, heads) against the baseline with the same heads.

    Args:
        mechanism: name of the mechanism.
        num_heads: heads of both.
        quality: the metric over all its seeds, oriented so that more is better.
        pairing: differences to the baseline, seed by seed.
        difference: summary of these; its interval decides, at `confidence`. None if no
            seed is shared, without an interval below `MIN_SEEDS`.
        estimate: the difference with its variance over seeds and over rows; None below 2 seeds.
        alpha: chance of a wrong decision over all looks, corrected for several candidates.
        confidence: confidence of the interval, above 1 - alpha where one looked after each seed.
        sufficiency: "suffices", "does not suffice" or "undecided"; "nothing was learned" if the
            baseline learned nothing, "too easy to tell" if both are so near the best possible value
            that the margin is larger than what they miss.
        failed: seeds of the mechanism that did not learn, see `suffice.measure.statistics`.
        failure_rate: the largest rate of such seeds that its seeds leave open, with 95% confidence.
        more_seeds: number of further seeds that would decide, if mean and spread stay; None if
            decided already, unknown, or more than CAP.
        more_rows: number of further test rows that would decide where no number of seeds does.
        rows_short: whether no number of seeds would decide, because there are too few test rows.
        claim: "better", "worse", "not shown", or "not tested" below three shared seeds.
        p_value: p value of no difference, two-sided, Holm-corrected; None if not tested.
        cost: cost of the mechanism.
        cheaper: whether that is less than the baseline's with the same heads.
    """

    mechanism: str
    num_heads: int
    quality: Summary
    pairing: Pairing
    difference: Summary | None
    estimate: Estimate | None = field(default=None, repr=False)
    alpha: float = 1.0 - LEVEL
    confidence: float = LEVEL
    sufficiency: str = UNDECIDED
    failed: tuple[int, ...] = ()
    failure_rate: float = 1.0
    more_seeds: int | None = None
    more_rows: int | None = None
    rows_short: bool = False
    claim: str = "not tested"
    p_value: float | None = None
    cost: Cost
    cheaper: bool

    @property
    def rows(self) -> int | None:
        """Test rows whose answers the interval is of; None where they were not kept."""
        return None if self.estimate is None else self.estimate.rows

    @property
    def of_rows_alone(self) -> bool:
        """Whether the interval is of other rows alone, as there is one seed."""
        return self.estimate is not None and self.estimate.seeds == 1


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The score of a model that learned nothing, and the baseline above it.

    Args:
        name: name of such a model, such as 'always "5"'.
        value: the metric of it, oriented.
        above: the baseline minus that, with a 95% interval where there is one.
        learned: whether the baseline is clearly above, and by more than the margin; None where it
            cannot be said.
    """

    name: str
    value: float
    above: Summary
    learned: bool | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a comparison.

    Args:
        baseline: name of the mechanism that all are compared with.
        metric: metric that is compared.
        margin: the margin used: a fraction, or nats of a loss.
        by: the cost mechanisms are ordered by.
        outcome: "suffices" (a cheaper mechanism does), "baseline" (no cheaper one does),
            "undecided", "unlearned" (the baseline is not clearly above a model that learned
            nothing) or "too easy" (a cheaper one is as near the best possible value).
        winner: the comparison that is named: the cheapest that suffices, or when undecided
            the cheapest that might; None for all other outcomes.
        comparisons: every (mechanism, heads) except the baseline's, in the order trained.
        qualities: the metric of the baseline by number of heads, oriented.
        floors: score of learning nothing, by number of heads; without one it is not known whether
            anything was learned.
        failed: seeds of the baseline that did not learn, by number of heads.
        improving: every (mechanism, heads) whose last epoch was the best in most of its seeds.
    """

    baseline: str
    metric: Metric
    margin: float
    by: str
    outcome: str
    winner: Comparison | None
    comparisons: tuple[Comparison, ...]
    qualities: dict[int, Summary]
    floors: dict[int, Floor] = field(default_factory=dict)
    failed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    improving: tuple[tuple[str, int], ...] = ()

    def find(self, mechanism: str, num_heads: int) -> Comparison | None:
        """Return one comparison, None for the baseline itself."""
        key = (mechanism, num_heads)
        return next((c for c in self.comparisons if (c.mechanism, c.num_heads) == key), None)

    def quality(self, mechanism: str, num_heads: int) -> Summary:
        """Return the metric of one (mechanism, heads), oriented."""
        comparison = self.find(mechanism, num_heads)
        return self.qualities[num_heads] if comparison is None else comparison.quality


def judge(
    results: Results,
    *,
    margin: float | None = None,
    cost: str = "flops",
    metric: str | None = None,
) -> Verdict:
    """Compare every mechanism with the baseline and name the cheapest that suffices.

    The cheapest is a choice among several, so the chance that any mechanism is falsely said to
    suffice is kept at that of one (Holm's step-down over those that are cheaper than the baseline);
    all of them show the interval of the last step, which agrees with what is said of them.

    Args:
        results: the comparison.
        margin: another margin than the one in results, a fraction.
        cost: meaning of "cheapest": "flops", "latency" (median) or "parameters"; ties are broken by
            parameters, then name, then fewer heads.
        metric: another metric than the one in results, see `suffice.measure.metrics`.

    Raises:
        ConfigError: if the margin, the cost or the metric is not legal, the baseline was not
            trained, or the latency decides and one was not measured.
    """
    return judge_together([results], margin=margin, cost=cost, metric=metric)[0]


def judge_together(
    several: Sequence[Results],
    *,
    margin: float | None = None,
    cost: str = "flops",
    metric: str | None = None,
) -> list[Verdict]:
    """Return the verdict of each of several comparisons, corrected for all of them together.

    The chance that anything is falsely said to suffice in any of them is kept at that of one
    comparison, and so is that of a false "better" or "worse".

    Args:
        several: comparisons of the same mechanisms, such as by another metric or on another task.
        margin: margin of all, see `judge`; by default each has its own.
        cost: meaning of "cheapest", see `judge`.
        metric: metric of all, see `judge`.
    """
    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    drafts = [_draft(results, margin, cost, metric) for results in several]
    alpha = 1.0 - LEVEL
    suffices = [
        _suffices(c.estimate, draft)
        for draft in drafts
        for c in draft.compared
        if _is_tested(c) and c.cheaper
    ]
    corrected = step_down(suffices, alpha)
    for draft in drafts:
        draft.compared = [
            _decided(c, draft.margin, corrected if c.cheaper else alpha, looks_of(draft.results))
            if _is_tested(c)
            else _untested(c)
            for c in draft.compared
        ]
    _claim(drafts)
    return [_verdict(draft) for draft in drafts]


def metric_in(results: Results, name: str | None) -> Metric:
    """Return the metric that a comparison is judged by: the one named, else its own."""
    if name is None and results.better is not None:
        return own_metric(results.metric, results.better, relative=results.relative)
    if name is None and results.external is not None:
        return share_metric(results.metric)
    return metric_of(results.metric if name is None else name)


@dataclass
class _Draft:
    """One comparison while it is judged."""

    results: Results
    scores: Scores
    margin: float
    by: str
    heads: list[int]
    floors: dict[int, Floor]
    unlearned: set[int]
    failed: dict[int, tuple[int, ...]]
    ceilings: dict[int, float]  # by heads, where the baseline misses no more than the margin
    compared: list[Comparison]


def _draft(results: Results, margin: float | None, cost: str, metric: str | None) -> _Draft:
    """Return every difference of a comparison, before anything is decided."""
    measured = metric_in(results, metric)
    margin = results.margin if margin is None else margin
    check_margin(margin, own_unit=measured.kind == "value")
    by = cost if results.external is None else ORDER
    names = dict.fromkeys(cell.mechanism for cell in results.cells)
    if results.baseline not in names:
        raise ConfigError(
            f"the baseline {results.baseline!r} was not trained; "
            f"trained: {', '.join(names) or 'none'}."
        )
    scores = Scores(results, measured)
    others = [key for key in results.pairs() if key[0] != results.baseline]
    heads = [h for name, h in results.pairs() if name == results.baseline]
    floors = {h: floor for h in heads if (floor := _floor(scores, h, margin)) is not None}
    unlearned = {h for h, floor in floors.items() if floor.learned is False}
    learned: dict[int, list[float]] = {}

    def failures(name: str, h: int) -> tuple[int, ...]:
        values, noise = scores.values(name, h), scores.noise(name, h)
        floor = floors[h].value if h in floors else None
        return failed_seeds(values, learned.get(h, ()), margin=margin, noise=noise, floor=floor)

    failed = {h: failures(results.baseline, h) for h in heads}
    for h, seeds in failed.items():
        values = scores.values(results.baseline, h)
        learned[h] = [value for seed, value in values.items() if seed not in seeds]
    enough = CEILINGS.get(measured.kind, math.inf) - margin - EXACT
    easy = {h for h, values in learned.items() if values and np.mean(values) >= enough}
    compared = []
    for key in others:
        comparison = replace(_compare(results, scores, *key, by), failed=failures(*key))
        rate = upper_rate(len(comparison.failed), comparison.quality.n)
        word = UNLEARNED if key[1] in unlearned else UNDECIDED
        compared.append(replace(comparison, failure_rate=rate, sufficiency=word))
    return _Draft(
        results=results,
        scores=scores,
        margin=margin,
        by=by,
        heads=heads,
        floors=floors,
        unlearned=unlearned,
        failed=failed,
        ceilings=dict.fromkeys(easy, enough),
        compared=compared,
    )


def _verdict(draft: _Draft) -> Verdict:
    """Return the verdict of a comparison whose intervals have decided."""
    results, scores = draft.results, draft.scores
    comparisons = tuple(
        _take_back(c, draft.failed.get(c.num_heads, ()), draft.ceilings.get(c.num_heads, math.inf))
        for c in draft.compared
    )
    outcome, winner = _choose(comparisons)
    if draft.unlearned and draft.unlearned.issuperset(draft.heads):
        outcome, winner = "unlearned", None
    return Verdict(
        baseline=results.baseline,
        metric=scores.metric,
        margin=draft.margin,
        by=draft.by,
        outcome=outcome,
        winner=winner,
        comparisons=comparisons,
        qualities={h: scores.summary(results.baseline, h) for h in draft.heads},
        floors=draft.floors,
        failed=draft.failed,
        improving=tuple(key for key in results.pairs() if is_improving(results.select(*key))),
    )


def is_improving(cells: Sequence[Cell]) -> bool:
    """Return whether most trainings ended, as planned, with their best epoch."""
    late = [
        bool(cell.epochs) and cell.best_epoch == len(cell.epochs) and not cell.stopped_early
        for cell in cells
    ]
    return 2 * sum(late) > len(late)


class Scores:
    """The metric of every model of a comparison, by row where its answers were kept.

    Args:
        results: the comparison.
        metric: metric that is scored.
    """

    def __init__(self, results: Results, metric: Metric) -> None:
        self.results, self.metric = results, metric
        self._rows: dict[tuple[str, int, int], np.ndarray] = {}

    def values(self, mechanism: str, num_heads: int) -> dict[int, float]:
        """Return the metric of every seed, oriented."""
        return {
            cell.seed: self._value(cell.key, cell)
            for cell in self.results.select(mechanism, num_heads)
        }

    def table(self, mechanism: str, num_heads: int, seeds: Sequence[int]) -> np.ndarray:
        """Return scores [S, R] of seeds and rows; [S, 1] where the answers were not all kept.

        A row that a seed did not test, as it is in another fold, is NaN.
        """
        keys = [(mechanism, num_heads, seed) for seed in seeds]
        rows = [self.rows(key) for key in keys]
        if self.results.folds is not None and keys and all(one is not None for one in rows):
            return spread(rows, [self.results.rows[key] for key in keys])
        if all(one is not None for one in rows) and len({len(one) for one in rows}) == 1:
            return np.stack(rows)
        values = self.values(mechanism, num_heads)
        return np.array([[values[seed]] for seed in seeds])

    def summary(self, mechanism: str, num_heads: int) -> Summary:
        """Return the metric over seeds, with the 95% interval of seeds and rows from 3 seeds on."""
        values = self.values(mechanism, num_heads)
        table = self.table(mechanism, num_heads, list(values))
        bounds = (0.0, 1.0) if self.metric.kind == "share" else (-math.inf, math.inf)
        found = estimate_of(table, self.results.folds)
        return _summary(list(values.values()), found, 1.0 - LEVEL, bounds)

    @property
    def asked(self) -> float | None:
        """Test answers of which the metric is the share that is right; None where unknown."""
        if (
            self.results.data is None
            or self.metric.kind != "share"
            or self.metric.needs == "ngrams"
        ):
            return None
        data = self.results.data
        return (data.tested or data.rows["test"]) * self.results.answers

    def noise(self, mechanism: str, num_heads: int) -> float:
        """Return the standard error of one seed by the test rows; 0 where it is not known."""
        values = self.values(mechanism, num_heads)
        table = self.table(mechanism, num_heads, list(values))
        table = table[~np.isinf(table).any(axis=1) & ~np.isnan(table).all(axis=1)]
        if table.shape[1] > 1 and len(table):
            tested = (~np.isnan(table)).sum(axis=1)
            return float((np.nanstd(table, axis=1) / np.sqrt(tested)).mean())
        if self.asked is None or not len(table):
            return 0.0
        return math.sqrt(float(table.mean()) * (1.0 - float(table.mean())) / self.asked)

    def rows(self, key: tuple[str, int, int]) -> np.ndarray | None:
        """Return the share of each test row in the metric of one model; None if not kept."""
        answers = self.results.rows.get(key)
        if answers is None or self.metric.rows is None or not self.metric.known(answers):
            return None
        if key not in self._rows:
            self.metric.check(answers)
            self._rows[key] = self.metric.rows(answers)
        return self._rows[key]

    def answers(self, mechanism: str, num_heads: int) -> Answers | None:
        """Return the answers of any seed, in folds those of all; None if none were kept."""
        keys = [cell.key for cell in self.results.select(mechanism, num_heads)]
        answers = [self.results.rows[key] for key in keys if key in self.results.rows]
        return joined(answers) if answers else None

    def _value(self, key: tuple[str, int, int], cell: object) -> float:
        rows = self.rows(key)
        if rows is None or self.metric.name == "accuracy":
            return value_in(cell, self.metric)
        return float(rows.mean())


def difference_table(scores: Scores, mechanism: str, num_heads: int) -> tuple[Pairing, np.ndarray]:
    """Return the pairing of a mechanism with the baseline, and differences [S, R] or [S, 1]."""
    baseline = scores.results.baseline
    pairing = pair(scores.values(mechanism, num_heads), scores.values(baseline, num_heads))
    seeds, empty = pairing.seeds, np.empty((0, 1))
    table = scores.table(mechanism, num_heads, seeds) if seeds else empty
    base = scores.table(baseline, num_heads, seeds) if seeds else empty
    if table.shape != base.shape:
        return pairing, np.array(pairing.differences)[:, None]
    with np.errstate(invalid="ignore"):
        return pairing, np.where(np.isinf(table) | np.isinf(base), np.inf, table - base)


def estimate_of(table: np.ndarray, folds: int | None) -> Estimate | None:
    """Return the estimate of scores [S, R]; None below two seeds or for scores not finite."""
    if len(table) < 2 or np.isinf(table).any():  # noqa: PLR2004
        return None
    if folds is not None and table.shape[1] > 1:
        return estimate_folds(table, folds)
    if np.isnan(table).any():
        return None
    return estimate(table) if folds is None else widen_for_folds(estimate(table), folds)


def _difference(scores: Scores, mechanism: str, num_heads: int) -> tuple[Pairing, Estimate | None]:
    """Return the pairing of a mechanism with the baseline, and the estimate of its difference.

    Where no seed is paired, a difference is that of one seed and the baseline's mean.
    """
    results, external = scores.results, scores.results.external
    if external is None or external.pairs_seeds:
        pairing, table = difference_table(scores, mechanism, num_heads)
        if external is None or len(table) != 1:
            return pairing, estimate_of(table, results.folds)
        enough = table.shape[1] >= MIN_ROWS and np.isfinite(table).all()
        shares = scores.metric.kind == "share"
        return pairing, estimate_rows(table, shares=shares) if enough else None
    values, base = (scores.values(name, num_heads) for name in (mechanism, results.baseline))
    tables = [
        scores.table(name, num_heads, list(of_seeds))
        for name, of_seeds in ((mechanism, values), (results.baseline, base))
    ]
    fewest = min(len(values), len(base))
    mean = np.mean(list(base.values()))
    differences = [value - mean for value in values.values()]
    pairing = Pairing(
        seeds=tuple(values)[:fewest],
        differences=tuple(map(float, differences)),
        left_out=(),
    )
    finite = all(np.isfinite(table).all() for table in tables)
    if not finite or fewest < 2 or tables[0].shape[1] != tables[1].shape[1]:  # noqa: PLR2004
        return pairing, None
    return pairing, estimate_unpaired(*tables)


def _summary(
    values: Sequence[float],
    found: Estimate | None,
    alpha: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Summary:
    """Summarise values of seeds, with the interval of an estimate from `MIN_SEEDS` on."""
    n = len(values)
    mean = float(np.mean(values)) if len(set(values)) > 1 else values[0]
    if found is None:
        return Summary(n=n, mean=mean, sd=None, low=None, high=None)
    sd = None
    if n > 1:
        sd = float(np.std(values, ddof=1)) if max(values) - min(values) > EXACT else 0.0
    if found.seeds != 1 and min(n, found.seeds) < MIN_SEEDS:
        return Summary(n=n, mean=mean, sd=sd, low=None, high=None)
    half = float(found.half_width(alpha))
    low, high = max(bounds[0], mean - half), min(bounds[1], mean + half)
    return Summary(n=n, mean=mean, sd=sd, low=low, high=high)


def _compare(
    results: Results, scores: Scores, mechanism: str, num_heads: int, by: str
) -> Comparison:
    """Compare one (mechanism, heads) with the baseline with the same heads."""
    cost = cost_of(results, mechanism, num_heads, by)
    pairing, found = _difference(scores, mechanism, num_heads)
    quality = scores.summary(mechanism, num_heads)
    if found is not None and found.rows is None and scores.asked is not None:
        found = bounded(found, quality.mean, scores.asked)
    cheaper = bool(results.select(results.baseline, num_heads)) and (
        cost.value < cost_of(results, results.baseline, num_heads, by).value
    )
    return Comparison(
        mechanism=mechanism,
        num_heads=num_heads,
        quality=quality,
        pairing=pairing,
        difference=_summary(pairing.differences, found, 1.0 - LEVEL) if pairing.seeds else None,
        estimate=found,
        cost=cost,
        cheaper=cheaper,
    )


def decide(found: Estimate, margin: float, alpha: float) -> str:
    """Return whether a difference is within the margin, by its interval of 1 - alpha.

    Returns:
        "suffices" if the whole interval is above -margin, "does not suffice" if it is below, else
        "undecided".

    Example:
        >>> decide(estimate([[0.0], [0.002], [0.001]]), 0.01, 0.05)
        'suffices'
    """
    mean, half = float(found.mean), float(found.half_width(alpha))
    if mean - half > EXACT - margin:
        return SUFFICES
    return FAILS if mean + half < -margin - EXACT else UNDECIDED


def _alpha(found: Estimate, alpha: float, looks: tuple[int, ...]) -> float:
    """Return the level of one interval for alpha over all looks."""
    return level(alpha, found.seeds, looks) if found.seeds in looks else alpha


def step_down(tests: Sequence[Callable[[float], bool]], alpha: float) -> float:
    """Return the level of the last step of Holm's procedure over tests.

    The tests that pass at that level are those that pass together: the chance that any of them
    passes falsely is at most alpha, and each other one is open at the very same level.

    Args:
        tests: functions that return whether a test passes at a level.
        alpha: level of all tests together.

    Example:
        >>> p_values = [0.01, 0.04, 0.02]
        >>> step_down([lambda level, p=p: p <= level for p in p_values], 0.05)
        0.05
        >>> step_down([lambda level, p=p: p <= level for p in [0.02, 0.04, 0.03]], 0.05)
        0.016666666666666666

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    passed = 0
    while passed < len(tests):
        if sum(test(alpha / (len(tests) - passed)) for test in tests) <= passed:
            return alpha / (len(tests) - passed)
        passed += 1
    return alpha


def _suffices(found: Estimate, draft: _Draft) -> Callable[[float], bool]:
    """Return whether a difference is within the margin at a level."""
    looks = looks_of(draft.results)
    return lambda at: decide(found, draft.margin, _alpha(found, at, looks)) == SUFFICES


def _testable(comparison: Comparison) -> bool:
    found = comparison.estimate
    return found is not None and (found.seeds >= MIN_SEEDS or comparison.of_rows_alone)


def _is_tested(comparison: Comparison) -> bool:
    return _testable(comparison) and comparison.sufficiency != UNLEARNED


def _untested(comparison: Comparison) -> Comparison:
    if comparison.sufficiency == UNLEARNED:
        return comparison
    seeds = len(comparison.pairing.seeds)
    finite = comparison.difference is not None and math.isfinite(comparison.difference.mean)
    return replace(comparison, more_seeds=MIN_SEEDS - seeds if seeds and finite else None)


def _decided(
    comparison: Comparison, margin: float, over_looks: float, looks: tuple[int, ...]
) -> Comparison:
    found = comparison.estimate
    alpha = _alpha(found, over_looks, looks)
    sufficiency = decide(found, margin, alpha)
    half = float(found.half_width(alpha))
    mean = comparison.difference.mean
    difference = replace(comparison.difference, low=mean - half, high=mean + half)
    more, more_of_rows, rows_short = None, None, False
    if sufficiency == UNDECIDED:
        limit = looks[-1] - found.seeds if looks else CAP
        more = more_seeds(found, abs(mean + margin), alpha, limit)
        rows_short = more is None and _rows_short(found, abs(mean + margin), alpha)
        if rows_short or found.seeds == 1:
            more_of_rows = more_rows(found, abs(mean + margin), alpha)
    return replace(
        comparison,
        difference=difference,
        alpha=over_looks,
        confidence=1.0 - alpha,
        sufficiency=sufficiency,
        more_seeds=more,
        more_rows=more_of_rows,
        rows_short=rows_short,
    )


def _take_back(comparison: Comparison, of_baseline: tuple[int, ...], enough: float) -> Comparison:
    """Take back what an interval of means cannot say, for failed seeds and at a ceiling.

    Args:
        comparison: decided by its interval.
        of_baseline: the baseline's seeds that failed.
        enough: value that misses no more than the margin, if the baseline does not; else infinity.
    """
    word, near = comparison.sufficiency, comparison.quality.mean >= enough
    few = len(comparison.pairing.seeds) < MIN_SEEDS and not comparison.of_rows_alone
    if few or word == UNLEARNED:
        return comparison
    if comparison.failed and not of_baseline:
        word = FAILS
    elif (word == SUFFICES and enough < math.inf) or (word == UNDECIDED and near):
        word = TOO_EASY
    else:
        return comparison
    return replace(comparison, sufficiency=word, more_seeds=None, more_rows=None, rows_short=False)


def more_seeds(found: Estimate, distance: float, alpha: float, cap: int) -> int | None:
    """Return how many more seeds bring the half width below a distance, if the spread stays.

    Returns:
        The smallest number of additional seeds, or None if `cap` more are too few.
    """

    def enough(more: int) -> bool:
        return distance - float(found.half_width_of(found.seeds + more, alpha)) > EXACT

    if cap < 1 or not enough(cap):
        return None
    low, high = 0, cap
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def more_rows(found: Estimate, distance: float, alpha: float) -> int | None:
    """Return how many more rows bring the half width below a distance, if the spread stays.

    What the seeds vary by is taken not to fall. None where that alone is too wide, or without rows.
    """
    if found.rows is None or distance <= EXACT:
        return None
    half, alone = (float(e.half_width(alpha)) for e in (found, replace(found, row_variance=0.0)))
    if alone >= distance:
        return None
    times = (half**2 - alone**2) / (distance**2 - alone**2)
    return max(1, math.ceil(found.rows * (times - 1.0)))


def _rows_short(found: Estimate, distance: float, alpha: float) -> bool:
    """Return whether the rows alone leave the interval wider than a distance."""
    from scipy.special import ndtri

    return -float(ndtri(alpha / 2)) * math.sqrt(float(found.row_variance)) >= distance > EXACT


def hopeless(comparison: Comparison, margin: float, most: int) -> bool:
    """Return whether further seeds up to `most` will probably not decide an undecided comparison.

    The chance of a decision at the last look is computed from the seeds there are: the mean over
    all seeds is Student's t around the present one, and the spread stays. Below `HOPELESS` no
    further seed is worth its training. Stopping without a verdict makes no verdict more likely to
    be wrong.
    """
    from scipy.special import stdtr

    found = comparison.estimate
    if found is None or found.seeds >= most:
        return found is not None
    half = float(found.half_width_of(most, level(comparison.alpha, most, most)))
    spread = float(found.spread_of_seeds) * math.sqrt(1.0 - found.seeds / most)
    distance = float(found.mean) + margin
    if spread == 0.0:
        return abs(distance) <= half
    above = stdtr(found.seeds - 1, (distance - half) / spread)
    below = stdtr(found.seeds - 1, (-half - distance) / spread)
    return float(above + below) < HOPELESS


def _claim(drafts: Sequence[_Draft]) -> None:
    """Test every difference, corrected for how many are tested together."""
    tested = [
        (draft, place)
        for draft in drafts
        for place, comparison in enumerate(draft.compared)
        if _testable(comparison)
    ]
    p_values = [float(draft.compared[place].estimate.p_value()) for draft, place in tested]
    for (draft, place), p_value in zip(tested, holm(p_values), strict=True):
        comparison = draft.compared[place]
        word = _word(comparison, p_value, looks_of(draft.results))
        draft.compared[place] = replace(comparison, p_value=p_value, claim=word)


def _word(comparison: Comparison, p_value: float, looks: tuple[int, ...]) -> str:
    if p_value >= _alpha(comparison.estimate, ALPHA, looks):
        return "not shown"
    return "better" if comparison.difference.mean > 0 else "worse"


def _choose(comparisons: tuple[Comparison, ...]) -> tuple[str, Comparison | None]:
    """Name the cheapest cheaper one that suffices, else the cheapest that might."""
    cheaper = sorted((c for c in comparisons if c.cheaper), key=lambda c: c.cost.order)
    words = {c.sufficiency for c in cheaper}
    if TOO_EASY in words and SUFFICES not in words:
        return "too easy", None
    for word in (SUFFICES, UNDECIDED):
        for comparison in cheaper:
            if comparison.sufficiency == word:
                return word, comparison
    return "baseline", None


def _floor(scores: Scores, num_heads: int, margin: float) -> Floor | None:
    """Hold the baseline against the best model that learned nothing."""
    results = scores.results
    seeds = list(scores.values(results.baseline, num_heads))
    table = scores.table(results.baseline, num_heads, seeds)
    answers = scores.answers(results.baseline, num_heads)
    survey, metric = results.data, scores.metric
    guess = None if answers is None or survey is None else majority_baseline(answers, survey)
    candidates: list[tuple[str, np.ndarray]] = []
    if guess is not None and metric.rows is not None and table.shape[1] > 1:
        of_rows = spread([metric.rows(guess)], [guess])
        candidates.append((f'always "{survey.majority_class}"', of_rows))
    elif metric.name == "accuracy" and results.majority is not None:
        known = survey is not None and survey.majority_class is not None
        name = f'always "{survey.majority_class}"' if known else "always the most frequent class"
        candidates.append((name, np.array([results.majority])))
    if metric.rows is METRICS["accuracy"].rows and results.chance is not None:
        candidates.append(("a blind guess", np.array([results.chance])))
    frequency_loss = None if survey is None else survey.frequency_loss
    if metric.name in ("log-loss", "perplexity") and frequency_loss is not None and not candidates:
        name = "answering with the training frequencies"
        candidates.append((name, -np.array([frequency_loss])))
    if not candidates:
        return None
    name, of_rows = max(candidates, key=lambda candidate: float(np.nanmean(candidate[1])))
    above = table - of_rows
    by_seed = np.nanmean(above, axis=1).tolist()
    if not all(map(math.isfinite, by_seed)):
        return None
    summary = _summary(by_seed, estimate_of(above, results.folds), 1.0 - LEVEL)
    learned = _learned(summary, above, scores.noise(results.baseline, num_heads))
    if learned and summary.mean <= margin + EXACT:  # who learned nothing would suffice
        learned = False
    return Floor(
        name=name,
        value=float(np.nanmean(of_rows)),
        above=summary,
        learned=learned,
    )


def _learned(summary: Summary, above: np.ndarray, noise: float) -> bool | None:
    """Return whether a mean is clearly above 0, by seeds and by rows, kept or counted."""
    if summary.mean <= 0.0:
        return False
    rows = above.shape[1]
    if rows == 1:
        error = noise
    else:
        tested = above[:, ~np.isnan(above).all(axis=0)]
        error = float(np.nanmean(tested, axis=0).std(ddof=1)) / math.sqrt(tested.shape[1])
    if summary.low is not None:
        return summary.low > 0.0 and (rows > 1 or summary.mean > ABOVE * error)
    return summary.mean > ABOVE * error if error else None
