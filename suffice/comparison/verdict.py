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

from suffice.comparison.metrics import Metric
from suffice.comparison.results import Cell, Results, check_margin
from suffice.comparison.scores import (
    MIN_SEEDS,
    Floor,
    Scores,
    difference_of,
    floor_of,
    metric_in,
    summary_of,
)
from suffice.comparison.sufficiency import (
    CAP,
    FAILS,
    HOPELESS,
    LEVEL,
    SUFFICES,
    TOO_EASY,
    UNDECIDED,
    UNLEARNED,
    decide,
    level,
    level_over_looks,
    looks_of,
    more_rows,
    more_seeds,
    step_down,
    too_few_rows,
)
from suffice.comparison.two_way_interval import EXACT, Estimate, bounded
from suffice.errors import ConfigError, check_known
from suffice.utils.statistics import (
    Pairing,
    Summary,
    failed_seeds,
    failure_p_value,
    holm,
    sound_seeds,
    upper_rate,
)
from suffice.utils.timing import summarise_times

SUFFICIENT, INSUFFICIENT, OPEN, NOTHING = 0, 10, 11, 12
"""Exit codes of `suffice compare` and `suffice verdict`; 1 and 2 are those of errors."""
COSTS = ("flops", "latency", "parameters")
ORDER = "order"  # of results of another program, which tell no cost: as they were named


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one (mechanism, heads)."""

    # "flops" (attention layers, one sample), "latency" (median seconds of one batch), "parameters"
    # (whole model) or "order" (the place among the names that were given)
    by: str
    value: float  # the price in that unit
    # sort key: the value, then parameters, then name, then heads
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


ALPHA = 0.005  # chance of any false "better" or "worse" in one comparison
CEILINGS = {"share": 1.0, "loss": 0.0, "perplexity": 0.0}  # best oriented value of a kind of metric


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One (mechanism, heads) against the baseline with the same heads."""

    mechanism: str  # name of the mechanism
    num_heads: int  # heads of both
    quality: Summary  # the metric over all its seeds, oriented so that more is better
    pairing: Pairing  # differences to the baseline, seed by seed
    # summary of these; its interval decides, at `confidence`. None if no seed is shared, without an
    # interval below `MIN_SEEDS`
    difference: Summary | None
    # the difference with its variance over seeds and over rows; None below 2 seeds
    estimate: Estimate | None = field(default=None, repr=False)
    # chance of a wrong decision over all looks, corrected for several candidates
    alpha: float = 1.0 - LEVEL
    # confidence of the interval, above 1 - alpha where one looked after each seed
    confidence: float = LEVEL
    # "suffices", "does not suffice" or "undecided"; "baseline not shown to have learned", "too easy
    # to tell" if both are so near the best possible value that the margin is larger than what they
    # miss
    sufficiency: str = UNDECIDED
    # seeds of the mechanism that did not learn, see `suffice.utils.statistics`
    failed: tuple[int, ...] = ()
    # the largest rate of such seeds that its seeds leave open, with 95% confidence
    failure_rate: float = 1.0
    # number of the baseline's seeds that failed, and of all its seeds
    failed_of_baseline: tuple[int, int] = (0, 0)
    failure_p: float = 1.0  # p value that the mechanism fails as rarely as the baseline
    # further seeds, none of which fails, that bound the rate as asked for; None where the rate is
    # not what is missing
    sound_seeds: int | None = None
    # number of further seeds that would decide, if mean and spread stay; None if decided already,
    # unknown, or more than CAP
    more_seeds: int | None = None
    # number of further test rows that would decide where more seeds do not
    more_rows: int | None = None
    # whether more seeds do not decide, because there are too few test rows
    rows_short: bool = False
    # whether the interval is within the margin and too narrow, as a few rows hold most of the loss
    tail: bool = False
    # "better", "worse", "not shown", or "not tested" below three shared seeds
    claim: str = "not tested"
    # p value of no difference, two-sided, Holm-corrected; None if not tested
    p_value: float | None = None
    cost: Cost  # cost of the mechanism
    cheaper: bool  # whether that is less than the baseline's with the same heads

    @property
    def rows(self) -> int | None:
        """Test rows whose answers the interval is of; None where they were not kept."""
        return None if self.estimate is None else self.estimate.rows

    @property
    def of_rows_alone(self) -> bool:
        """Whether the interval is of other rows alone, as there is one seed."""
        return self.estimate is not None and self.estimate.seeds == 1

    @property
    def fails_more_often(self) -> bool:
        """Whether a larger share of its seeds failed than of the baseline's."""
        failed, seeds = self.failed_of_baseline
        return len(self.failed) * seeds > failed * self.quality.n


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a comparison."""

    baseline: str  # name of the mechanism that all are compared with
    metric: Metric  # metric that is compared
    margin: float  # the margin used: a fraction, or nats of a loss
    by: str  # the cost mechanisms are ordered by
    # "suffices" (a cheaper mechanism does), "baseline" (no cheaper one does), "undecided",
    # "baseline not shown to have learned" (see `Floor`) or "too easy to tell" (a cheaper one is as
    # near the best possible value)
    outcome: str
    # the comparison that is named: the cheapest that suffices, or when undecided the cheapest that
    # might; None for all other outcomes
    winner: Comparison | None
    # every (mechanism, heads) except the baseline's, in the order trained
    comparisons: tuple[Comparison, ...]
    qualities: dict[int, Summary]  # the metric of the baseline by number of heads, oriented
    # score of learning nothing, by number of heads; without one it is not known whether anything
    # was learned
    floors: dict[int, Floor] = field(default_factory=dict)
    # seeds of the baseline that did not learn, by number of heads
    failed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # every (mechanism, heads) whose last epoch was the best in most of its seeds
    improving: tuple[tuple[str, int], ...] = ()

    @property
    def code(self) -> int:
        """Exit code: 0 suffices, 10 nothing cheaper does, 11 open, 12 nothing to compare."""
        if self.outcome == "baseline" and not any(c.cheaper for c in self.comparisons):
            return NOTHING
        codes = {SUFFICES: SUFFICIENT, "baseline": INSUFFICIENT, UNDECIDED: OPEN}
        return codes.get(self.outcome, NOTHING)

    @property
    def has_intervals(self) -> bool:
        """Whether any difference has one."""
        return any(c.difference and c.difference.low is not None for c in self.comparisons)

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
    failures: float | None = None,
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
        metric: another metric than the one in results, see `suffice.comparison.metrics`.
        failures: largest acceptable rate of failed seeds; a mechanism suffices only if its seeds
            rule out a higher one with 95% confidence. None asks nothing of the rate.

    Raises:
        ConfigError: if the margin, the cost or the metric is not legal, the baseline was not
            trained, or the latency decides and one was not measured.
    """
    options = {"margin": margin, "cost": cost, "metric": metric, "failures": failures}
    return judge_together([results], **options)[0]


def judge_together(
    several: Sequence[Results],
    *,
    margin: float | None = None,
    cost: str = "flops",
    metric: str | None = None,
    failures: float | None = None,
) -> list[Verdict]:
    """Return the verdict of each of several comparisons, corrected for all of them together.

    The chance that anything is falsely said to suffice in any of them is kept at that of one
    comparison, and so is that of a false "better" or "worse".

    Args:
        several: comparisons of the same mechanisms, such as by another metric or on another task.
        margin: margin of all, see `judge`; by default each has its own.
        cost: meaning of "cheapest", see `judge`.
        metric: metric of all, see `judge`.
        failures: largest acceptable rate of failed seeds, see `judge`.
    """
    check_known("cost", cost, COSTS)
    if failures is not None and not 0.0 < failures < 1.0:
        raise ConfigError(f"failures={failures:g} is not a rate; use a fraction such as 0.2.")
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
    return [_verdict(draft, failures) for draft in drafts]


@dataclass
class _Draft:
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
    floors = {h: floor for h in heads if (floor := floor_of(scores, h, margin)) is not None}
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
        comparison = _compare(results, scores, *key, by)
        counts = len(failures(*key)), comparison.quality.n
        of_baseline = len(failed.get(key[1], ())), len(scores.values(results.baseline, key[1]))
        compared.append(
            replace(
                comparison,
                failed=failures(*key),
                failure_rate=upper_rate(*counts),
                failed_of_baseline=of_baseline,
                failure_p=failure_p_value(counts, of_baseline),
                sufficiency=UNLEARNED if key[1] in unlearned else UNDECIDED,
            )
        )
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


def _verdict(draft: _Draft, failures: float | None) -> Verdict:
    results, scores = draft.results, draft.scores
    comparisons = tuple(
        _take_back(c, draft.ceilings.get(c.num_heads, math.inf), failures) for c in draft.compared
    )
    outcome, winner = _choose(comparisons)
    if draft.unlearned and draft.unlearned.issuperset(draft.heads):
        outcome, winner = UNLEARNED, None
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


def _compare(
    results: Results, scores: Scores, mechanism: str, num_heads: int, by: str
) -> Comparison:
    cost = cost_of(results, mechanism, num_heads, by)
    pairing, found = difference_of(scores, mechanism, num_heads)
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
        difference=summary_of(pairing.differences, found, 1.0 - LEVEL) if pairing.seeds else None,
        estimate=found,
        cost=cost,
        cheaper=cheaper,
    )


def _suffices(found: Estimate, draft: _Draft) -> Callable[[float], bool]:
    looks = looks_of(draft.results)
    return lambda at: decide(found, draft.margin, level_over_looks(found, at, looks)) == SUFFICES


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
    alpha = level_over_looks(found, over_looks, looks)
    sufficiency = decide(found, margin, alpha)
    half = float(found.half_width(alpha))
    mean = comparison.difference.mean
    difference = replace(comparison.difference, low=mean - half, high=mean + half)
    more, more_of_rows, rows_short = None, None, False
    tail = sufficiency == UNDECIDED and mean - half > EXACT - margin
    if sufficiency == UNDECIDED and not tail:
        limit = looks[-1] - found.seeds if looks else CAP
        more = more_seeds(found, abs(mean + margin), alpha, limit)
        rows_short = more is None and too_few_rows(found, abs(mean + margin), alpha)
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
        tail=tail,
    )


def _take_back(comparison: Comparison, enough: float, failures: float | None) -> Comparison:
    """Take back what an interval of means cannot say, for failed seeds and at a ceiling.

    A mechanism whose seeds fail more often than the baseline's does not suffice, and is undecided
    while Fisher's exact test at the level of the interval does not show that they do.

    Args:
        comparison: decided by its interval.
        enough: value that misses no more than the margin, if the baseline does not; else infinity.
        failures: largest acceptable rate of failed seeds.
    """
    word, near = comparison.sufficiency, comparison.quality.mean >= enough
    few = len(comparison.pairing.seeds) < MIN_SEEDS and not comparison.of_rows_alone
    sound = None
    if few or word in (UNLEARNED, FAILS):
        return comparison
    if comparison.failure_p < (1.0 - comparison.confidence) / 2:
        word = FAILS
    elif comparison.fails_more_often:
        word = UNDECIDED
    elif (word == SUFFICES and enough < math.inf) or (word == UNDECIDED and near):
        word = TOO_EASY
    elif word == SUFFICES and failures is not None and comparison.failure_rate > failures:
        word, sound = UNDECIDED, sound_seeds(len(comparison.failed), comparison.quality.n, failures)
    else:
        return comparison
    return replace(
        comparison,
        sufficiency=word,
        sound_seeds=sound,
        more_seeds=None,
        more_rows=None,
        rows_short=False,
    )


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
    if p_value >= level_over_looks(comparison.estimate, ALPHA, looks):
        return "not shown"
    return "better" if comparison.difference.mean > 0 else "worse"


def _choose(comparisons: tuple[Comparison, ...]) -> tuple[str, Comparison | None]:
    """Name the cheapest cheaper one that suffices, else the cheapest that might."""
    cheaper = sorted((c for c in comparisons if c.cheaper), key=lambda c: c.cost.order)
    words = {c.sufficiency for c in cheaper}
    if TOO_EASY in words and SUFFICES not in words:
        return TOO_EASY, None
    for word in (SUFFICES, UNDECIDED):
        for comparison in cheaper:
            if comparison.sufficiency == word:
                return word, comparison
    return "baseline", None
