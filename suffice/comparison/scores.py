"""The metric of every model of a comparison by seed and row, against the baseline and a guess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from suffice.comparison.answers import BAG, Answers, joined, majority_baseline, spread
from suffice.comparison.metrics import (
    METRICS,
    Metric,
    metric_of,
    own_metric,
    share_metric,
    value_in,
)
from suffice.comparison.results import OWN_LOOP, Results
from suffice.comparison.sufficiency import LEVEL
from suffice.comparison.two_way_interval import (
    EXACT,
    Estimate,
    Sampling,
    by_group,
    estimate,
    estimate_folds,
    estimate_rows,
    estimate_unpaired,
    rounded,
    widen_for_folds,
)
from suffice.utils.statistics import ABOVE, Pairing, Summary, pair

MIN_SEEDS = 3  # fewer give no interval: two accuracies of a small test set often agree by chance
MIN_ROWS = 30  # of one seed; fewer give no interval


def metric_in(results: Results, name: str | None) -> Metric:
    """Return the metric that a comparison is judged by: the one named, else its own."""
    if name is None and results.better is not None:
        return own_metric(results.metric, results.better, relative=results.relative)
    if name is None and results.external is not None:
        return share_metric(results.metric)
    return metric_of(results.metric if name is None else name)


class Scores:
    """The metric of every model of a comparison, by row where its answers were kept."""

    def __init__(self, results: Results, metric: Metric) -> None:
        self.results, self.metric = results, metric
        self._rows: dict[tuple[str, int, int], np.ndarray] = {}

    def values(self, mechanism: str, num_heads: int) -> dict[int, float]:
        """Return the metric of every seed, oriented; of a bag of words that of each fold."""
        if mechanism == BAG:
            rows = {key[2]: self.rows(key) for key in self.results.rows if key[0] == BAG}
            return {seed: float(of.mean()) for seed, of in rows.items() if of is not None}
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
        found = self.estimate(table)
        return summary_of(list(values.values()), found, 1.0 - LEVEL, bounds)

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
        table = self.by_sample(table[~np.isinf(table).any(axis=1) & ~np.isnan(table).all(axis=1)])
        if table.shape[1] > 1 and len(table):
            tested = (~np.isnan(table)).sum(axis=1)
            return float((np.nanstd(table, axis=1) / np.sqrt(tested)).mean())
        if self.asked is None or not len(table):
            return 0.0
        return math.sqrt(float(table.mean()) * (1.0 - float(table.mean())) / self.asked)

    @cached_property
    def groups(self) -> np.ndarray | None:
        """Group of each test row, [R], NaN where no seed tested it; None: rows are the samples."""
        answers = list(self.results.rows.values())
        if not answers or any(one.group is None for one in answers):
            return None
        return np.fmax.reduce(spread([one.group for one in answers], answers), axis=0)

    def by_sample(self, table: np.ndarray) -> np.ndarray:
        """Return a table of scores [S, R] by groups, [S, G], where rows belong to groups."""
        by_row = self.groups is not None and table.shape[1] == len(self.groups)
        return by_group(table, self.groups) if by_row and len(table) else table

    def sampling(self, rows: int, *, differences: bool) -> Sampling:
        """Describe the samples of a table with this number of rows."""
        external, groups = self.results.external, self.groups
        largest = 1.0 if differences and self.metric.kind == "share" else 0.0
        sizes = () if external is None or rows == 1 else external.rows_of_tasks
        if groups is None or rows != len(groups):
            return Sampling(largest=largest, sizes=sizes)
        weights = np.unique(groups, return_counts=True)[1]
        parts = np.split(groups, np.cumsum(sizes)[:-1]) if sizes else ()
        return Sampling(
            largest=largest * len(weights) / rows,
            sizes=tuple(len(np.unique(part)) for part in parts),
            weights=weights,
        )

    def estimate(self, table: np.ndarray, *, differences: bool = False) -> Estimate | None:
        """Return the estimate of scores [S, R]; None below two seeds or for scores not finite."""
        if len(table) < 2 or np.isinf(table).any():  # noqa: PLR2004
            return None
        samples, folds = self.by_sample(table), self.results.folds
        sampling = self.sampling(table.shape[1], differences=differences)
        if folds is not None and table.shape[1] > 1:
            return estimate_folds(samples, folds, sampling)
        if np.isnan(samples).any():
            return None
        estimated = estimate(samples, sampling)
        return estimated if folds is None else widen_for_folds(estimated, folds)

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


def difference_of_bag(scores: Scores, num_heads: int) -> Summary | None:
    """Return a bag of words minus the baseline on the same rows; None where either was not kept."""
    seeds, baseline = list(scores.values(BAG, 0)), (scores.results.baseline, num_heads)
    if not seeds or not {*seeds} <= {*scores.values(*baseline)}:
        return None
    bag, base = scores.table(BAG, 0, seeds), scores.table(*baseline, seeds)
    if bag.shape != base.shape:
        return None
    found = scores.estimate(bag - base, differences=True)
    return summary_of(np.nanmean(bag - base, axis=1).tolist(), found, 1.0 - LEVEL)


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


def difference_of(
    scores: Scores, mechanism: str, num_heads: int
) -> tuple[Pairing, Estimate | None]:
    """Return the pairing of a mechanism with the baseline, and the estimate of its difference.

    Where no seed is paired, a difference is that of one seed and the baseline's mean.
    """
    external = scores.results.external
    if external is not None and not external.pairs_seeds:
        pairing, found = _unpaired(scores, mechanism, num_heads)
    else:
        pairing, table = difference_table(scores, mechanism, num_heads)
        alone = external is not None and len(table) == 1
        found = _of_rows(scores, table) if alone else scores.estimate(table, differences=True)
    if external is not None and found is not None and found.rows is None:
        found = rounded(found, external.last_digit)
    return pairing, found


def _of_rows(scores: Scores, table: np.ndarray) -> Estimate | None:
    if table.shape[1] < MIN_ROWS or not np.isfinite(table).all():
        return None
    sampling = scores.sampling(table.shape[1], differences=True)
    return estimate_rows(scores.by_sample(table), sampling)


def _unpaired(scores: Scores, mechanism: str, num_heads: int) -> tuple[Pairing, Estimate | None]:
    baseline = scores.results.baseline
    values, base = (scores.values(name, num_heads) for name in (mechanism, baseline))
    ours = scores.table(mechanism, num_heads, list(values))
    theirs = scores.table(baseline, num_heads, list(base))
    fewest, mean = min(len(values), len(base)), np.mean(list(base.values()))
    pairing = Pairing(
        seeds=tuple(values)[:fewest],
        differences=tuple(float(value - mean) for value in values.values()),
        left_out=(),
    )
    finite = np.isfinite(ours).all() and np.isfinite(theirs).all()
    if not finite or fewest < 2 or ours.shape[1] != theirs.shape[1]:  # noqa: PLR2004
        return pairing, None
    sampling = scores.sampling(ours.shape[1], differences=True)
    return pairing, estimate_unpaired(scores.by_sample(ours), scores.by_sample(theirs), sampling)


def summary_of(
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


TELLING = ("log-loss", "balanced", "accuracy")  # scores of classes, the one that tells most first
GUESS, NO_READER = "a blind guess", "a model that learned nothing"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The score of a model that learned nothing, and the baseline above it."""

    name: str  # such as 'always "5"'
    metric: str  # name of the metric
    value: float  # the metric of it, oriented
    above: Summary  # the baseline minus that, with an interval of `confidence` where there is one
    confidence: float = LEVEL  # more where several scores are looked at
    # whether the baseline is shown to be above by the score that tells most, and its mean by more
    # than the margin; None where it cannot be tested
    learned: bool | None
    shown_by: Floor | None = None  # the same in the metric that shows it, where that is another


def floor_of(scores: Scores, num_heads: int, margin: float) -> Floor | None:
    """Return the score of learning nothing, and whether the baseline is above it.

    Where the answers to rows with classes were kept, log-loss against the frequencies of the
    classes, balanced accuracy and accuracy are looked at in this order, and share the error rate:
    accuracy alone shows little on few rows. A verdict needs a score above by more than the margin.
    """
    results = scores.results
    classes = results.data is not None and bool(results.data.classes)
    others = [name for name in TELLING if classes and name != scores.metric.name]
    shown = {
        name: floor
        for name in others
        if _by_row(of_name := Scores(results, METRICS[name]), num_heads)
        and (floor := _above(of_name, num_heads, 1 + len(others)))
    }
    own = _above(scores, num_heads, 1 + len(shown))
    if own is None:
        return None
    if not own.learned:
        shown_by = next((floor for floor in shown.values() if floor.learned), None)
        own = own if shown_by is None else replace(own, learned=True, shown_by=shown_by)
    if own.learned and own.above.mean <= margin + EXACT:  # who learned nothing would suffice
        return replace(own, learned=False)
    return own


def _above(scores: Scores, num_heads: int, looks: int) -> Floor | None:
    results, metric = scores.results, scores.metric
    seeds = list(scores.values(results.baseline, num_heads))
    candidates = _candidates(scores, num_heads)
    if not candidates:
        return None
    table = scores.table(results.baseline, num_heads, seeds)
    name, of_rows = max(candidates, key=lambda candidate: float(np.nanmean(candidate[1])))
    above = table - of_rows
    by_seed = np.nanmean(above, axis=1).tolist()
    if not all(map(math.isfinite, by_seed)):
        return None
    alpha = (1.0 - LEVEL) / looks
    summary = summary_of(by_seed, scores.estimate(above), alpha)
    noise = scores.noise(results.baseline, num_heads)
    return Floor(
        name=name,
        metric=metric.name,
        value=float(np.nanmean(of_rows)),
        above=summary,
        confidence=1.0 - alpha,
        learned=_learned(summary, scores.by_sample(above), noise),
    )


def _by_row(scores: Scores, num_heads: int) -> bool:
    cells = scores.results.select(scores.results.baseline, num_heads)
    return all(scores.rows(cell.key) is not None for cell in cells)


def _candidates(scores: Scores, num_heads: int) -> list[tuple[str, np.ndarray]]:
    results, survey, metric = scores.results, scores.results.data, scores.metric
    answers = scores.answers(results.baseline, num_heads)
    guess = None if answers is None or survey is None else majority_baseline(answers, survey)
    known = survey is not None and survey.majority_class is not None
    constant = f'always "{survey.majority_class}"' if known else "always the most frequent class"
    frequencies = "answering with the training frequencies"
    loss = metric.name in ("log-loss", "perplexity")
    candidates: list[tuple[str, np.ndarray]] = []
    if guess is not None and _by_row(scores, num_heads):
        of_rows = spread([metric.rows(guess)], [guess])
        candidates.append((frequencies if loss else constant, of_rows))
    elif metric.name == "accuracy" and results.majority is not None:
        candidates.append((constant, np.array([results.majority])))
    if metric.rows is METRICS["accuracy"].rows and results.chance is not None:
        name = NO_READER if results.task == OWN_LOOP else GUESS
        candidates.append((name, np.array([results.chance])))
    frequency_loss = None if survey is None else survey.frequency_loss
    if loss and frequency_loss is not None and not candidates:
        candidates.append((frequencies, -np.array([frequency_loss])))
    return candidates


def _learned(summary: Summary, above: np.ndarray, noise: float) -> bool | None:
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
