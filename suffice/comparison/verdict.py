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
from typing import Any

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
"""FLOPs of the attention layers for a sample, median seconds of a batch, parameters."""
ORDER = "order"  # of results of another program, which tell no cost: as they were named


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The price of one (mechanism, heads)."""

    by: str  # one of `COSTS`, or `ORDER`
    value: float
    order: tuple[float, int, str, int]  # sort key: value, parameters, name, heads


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
    """One (mechanism, heads) against the baseline."""

    mechanism: str
    num_heads: int  # heads of both
    quality: Summary  # the metric over all its seeds, oriented so that more is better
    pairing: Pairing  # differences to the baseline, seed by seed
    # their mean; its interval, at `confidence`, decides; None if no seed is shared
    difference: Summary | None
    # the same with its variance over seeds and over rows; None below 2 seeds
    estimate: Estimate | None = field(default=None, repr=False)
    # chance of a wrong decision over all looks, corrected for several candidates
    alpha: float = 1.0 - LEVEL
    confidence: float = LEVEL  # of the interval: above 1 - alpha where one looks after each seed
    sufficiency: str = UNDECIDED  # SUFFICES, FAILS, UNDECIDED, UNLEARNED or TOO_EASY
    failed: tuple[int, ...] = ()  # its seeds that did not learn, see `failed_seeds`
    failure_rate: float = 1.0  # the largest that its seeds leave open, with 95% confidence
    failed_of_baseline: tuple[int, int] = (0, 0)  # of how many seeds
    failure_p: float = 1.0  # p value that the mechanism fails as rarely as the baseline
    # further seeds without a failure that bound the rate as asked for; None if it is not missing
    sound_seeds: int | None = None
    # further seeds that would decide, if mean and spread stay; None if decided, unknown or > CAP
    more_seeds: int | None = None
    more_rows: int | None = None  # further test rows that would, where more seeds do not
    rows_short: bool = False  # whether more seeds do not decide, as there are too few test rows
    # whether the interval is within the margin and too narrow, as a few rows hold most of the loss
    tail: bool = False
    claim: str = "not tested"  # or "better", "worse", "not shown"; not tested below three seeds
    p_value: float | None = None  # of no difference, two-sided, Holm-corrected
    cost: Cost
    cheaper: bool  # whether it costs less than the baseline with the same heads

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

    baseline: str
    metric: Metric
    margin: float  # a fraction, nats of a loss, or the metric's own unit
    by: str  # the cost mechanisms are ordered by
    outcome: str = UNDECIDED  # SUFFICES, "baseline" (nothing cheaper does), UNLEARNED or TOO_EASY
    # the cheapest that suffices, or when undecided the cheapest that might; else None
    winner: Comparison | None = None
    # every (mechanism, heads) except the baseline's, in the order trained
    comparisons: tuple[Comparison, ...] = ()
    qualities: dict[int, Summary]  # the metric of the baseline by number of heads, oriented
    floors: dict[int, Floor] = field(default_factory=dict)  # score of learning nothing, by heads
    failed: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of the baseline's seeds
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
    def unlearned(self) -> set[int]:
        """Numbers of heads with which the baseline is not shown to have learned."""
        return {heads for heads, floor in self.floors.items() if floor.learned is False}

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
    options = {"margin": margin, "cost": cost, "metric": metric}
    return judge_together([results], failures=failures, **options)[0]


def judge_together(
    several: Sequence[Results], *, failures: float | None = None, **options: Any
) -> list[Verdict]:
    """Return the verdict of each of several comparisons, corrected for all of them together.

    The chance that anything is falsely said to suffice in any of them is kept at that of one
    comparison, and so is that of a false "better" or "worse". The options are those of `judge`.
    """
    if failures is not None and not 0.0 < failures < 1.0:
        raise ConfigError(f"failures={failures:g} is not a rate; use a fraction such as 0.2.")
    drafts = [_draft(results, **options) for results in several]
    alpha = 1.0 - LEVEL
    suffices = [
        _suffices(c.estimate, draft)
        for draft in drafts
        for c in draft.compared
        if _testable(c) and c.cheaper and c.sufficiency != UNLEARNED
    ]
    corrected = step_down(suffices, alpha)
    for draft in drafts:
        margin = draft.verdict.margin
        draft.compared = [
            _decided(c, margin, corrected if c.cheaper else alpha, draft.looks)
            for c in draft.compared
        ]
    _claim(drafts)
    return [_verdict(draft, failures) for draft in drafts]


@dataclass
class _Draft:
    verdict: Verdict  # as far as it does not depend on the comparisons
    compared: list[Comparison]
    looks: tuple[int, ...]  # numbers of seeds at which one looks
    enough: float  # value that misses no more than the margin
    easy: set[int]  # numbers of heads with which the baseline reaches it


def _draft(
    results: Results,
    *,
    margin: float | None = None,
    cost: str = "flops",
    metric: str | None = None,
) -> _Draft:
    check_known("cost", cost, COSTS)
    measured = metric_in(results, metric)
    margin = results.margin if margin is None else margin
    check_margin(margin, own_unit=measured.kind == "value")
    names = dict.fromkeys(cell.mechanism for cell in results.cells)
    if results.baseline not in names:
        raise ConfigError(
            f"the baseline {results.baseline!r} was not trained; "
            f"trained: {', '.join(names) or 'none'}."
        )
    scores = Scores(results, measured)
    heads = [h for name, h in results.pairs() if name == results.baseline]
    floors = {h: floor for h in heads if (floor := floor_of(scores, h, margin)) is not None}
    learned: dict[int, list[float]] = {}

    def failures(name: str, h: int) -> tuple[int, ...]:
        values, noise = scores.values(name, h), scores.noise(name, h)
        floor = floors[h].value if h in floors else None
        return failed_seeds(values, learned.get(h, ()), margin=margin, noise=noise, floor=floor)

    verdict = Verdict(
        baseline=results.baseline,
        metric=measured,
        margin=margin,
        by=cost if results.external is None else ORDER,
        qualities={h: scores.summary(results.baseline, h) for h in heads},
        floors=floors,
        failed={h: failures(results.baseline, h) for h in heads},
        improving=tuple(key for key in results.pairs() if is_improving(results.select(*key))),
    )
    for h, seeds in verdict.failed.items():
        values = scores.values(results.baseline, h)
        learned[h] = [value for seed, value in values.items() if seed not in seeds]
    enough = CEILINGS.get(measured.kind, math.inf) - margin - EXACT
    return _Draft(
        verdict=verdict,
        compared=[
            _compare(scores, name, h, verdict, failures(name, h))
            for name, h in results.pairs()
            if name != results.baseline
        ],
        looks=looks_of(results),
        enough=enough,
        easy={h for h, values in learned.items() if values and np.mean(values) >= enough},
    )


def _verdict(draft: _Draft, failures: float | None) -> Verdict:
    comparisons = tuple(
        _take_back(c, draft.enough if c.num_heads in draft.easy else math.inf, failures)
        for c in draft.compared
    )
    outcome, winner = _choose(comparisons)
    if draft.verdict.unlearned.issuperset(draft.verdict.qualities):
        outcome, winner = UNLEARNED, None
    return replace(draft.verdict, comparisons=comparisons, outcome=outcome, winner=winner)


def is_improving(cells: Sequence[Cell]) -> bool:
    """Return whether most trainings ended, as planned, with their best epoch."""
    late = [
        bool(cell.epochs) and cell.best_epoch == len(cell.epochs) and not cell.stopped_early
        for cell in cells
    ]
    return 2 * sum(late) > len(late)


def _compare(
    scores: Scores, mechanism: str, num_heads: int, verdict: Verdict, failed: tuple[int, ...]
) -> Comparison:
    results, by = scores.results, verdict.by
    cost = cost_of(results, mechanism, num_heads, by)
    pairing, found = difference_of(scores, mechanism, num_heads)
    quality = scores.summary(mechanism, num_heads)
    if found is not None and found.rows is None and scores.asked is not None:
        found = bounded(found, quality.mean, scores.asked)
    of_baseline = scores.values(results.baseline, num_heads)
    counts = len(failed), quality.n
    counts_of_baseline = len(verdict.failed.get(num_heads, ())), len(of_baseline)
    return Comparison(
        mechanism=mechanism,
        num_heads=num_heads,
        quality=quality,
        pairing=pairing,
        difference=summary_of(pairing.differences, found, 1.0 - LEVEL) if pairing.seeds else None,
        estimate=found,
        sufficiency=UNLEARNED if num_heads in verdict.unlearned else UNDECIDED,
        failed=failed,
        failure_rate=upper_rate(*counts),
        failed_of_baseline=counts_of_baseline,
        failure_p=failure_p_value(counts, counts_of_baseline),
        cost=cost,
        cheaper=bool(of_baseline)
        and cost.value < cost_of(results, results.baseline, num_heads, by).value,
    )


def _suffices(found: Estimate, draft: _Draft) -> Callable[[float], bool]:
    margin, looks = draft.verdict.margin, draft.looks
    return lambda at: decide(found, margin, level_over_looks(found, at, looks)) == SUFFICES


def _testable(comparison: Comparison) -> bool:
    found = comparison.estimate
    return found is not None and (found.seeds >= MIN_SEEDS or comparison.of_rows_alone)


def _decided(
    comparison: Comparison, margin: float, over_looks: float, looks: tuple[int, ...]
) -> Comparison:
    found = comparison.estimate
    if comparison.sufficiency == UNLEARNED:
        return comparison
    if not _testable(comparison):
        seeds = len(comparison.pairing.seeds)
        finite = comparison.difference is not None and math.isfinite(comparison.difference.mean)
        return replace(comparison, more_seeds=MIN_SEEDS - seeds if seeds and finite else None)
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
    """Withdraw decisions of an interval that failed seeds or a ceiling invalidate.

    A mechanism whose seeds fail more often than the baseline's does not suffice, and is undecided
    while Fisher's exact test at the level of the interval does not show that they do.
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

    The mean over all seeds is Student's t around the present one, and the spread stays; the chance
    of a decision at the last look is below `HOPELESS`. Stopping without a verdict makes no verdict
    more likely to be wrong.
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
        word = _word(comparison, p_value, draft.looks)
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
