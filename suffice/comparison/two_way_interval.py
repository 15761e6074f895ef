"""The mean of scores over seeds and test rows, with an interval that covers both."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.errors import ConfigError
from suffice.utils.statistics import EXACT

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The mean of scores [..., S, R] of S seeds on R test rows, and its variance by source."""

    mean: Values  # over seeds and rows, [...]
    seed_variance: Values  # of the mean, as far as it falls with the number of seeds, [...]
    row_variance: Values  # of the mean, as far as only more test rows lower it, [...]
    seeds: int  # S; 1 where the variance is that over rows alone
    rows: int | None  # R; None if one number of each seed is known: the rows are taken as they are
    least_variance: float | Values = 0.0  # minimum of the seed variance, known from the rows
    freedom: float | None = None  # of the variance over seeds; None for seeds - 1
    row_freedom: float | None = None  # of the variance over rows; None for rows - 1
    resolution: float = 0.0  # half width that no interval is below, as numbers were rounded
    # of the mean over rows: far below 0 where a few rows hold most of a loss; 0 of bounded shares
    skewness: float | Values = 0.0
    unit: str = "test rows"  # name of the samples that R counts

    @property
    def standard_error(self) -> Values:
        return np.sqrt(self.spread_of_seeds**2 + self.row_variance)

    @property
    def spread_of_seeds(self) -> Values:
        """Standard error of the mean as far as it falls with the number of seeds."""
        return np.sqrt(np.maximum(self.seed_variance, self.least_variance))

    def half_width(self, alpha: float | Values) -> Values:
        """Return half the width of the 1 - alpha interval of the mean."""
        return self.half_width_of(self.seeds, alpha)

    def half_width_of(self, seeds: int, alpha: float | Values) -> Values:
        """Return the half width to expect of another number of seeds on the same rows."""
        by_seed, by_row = self.seed_variance * self.seeds / seeds, self.row_variance
        rows = math.inf if self.rows is None else self.rows - 1
        narrow = quantile(alpha, rows if self.row_freedom is None else self.row_freedom)
        freedom = seeds - 1.0
        if self.freedom is not None:
            freedom *= self.freedom / (self.seeds - 1)
        wide = narrow if self.seeds == 1 else quantile(alpha, freedom)
        share = by_row / np.maximum(by_seed + by_row, np.finfo(float).tiny)
        squared = wide**2 - (wide**2 - narrow**2) * share**3
        least = narrow**2 * self.least_variance * self.seeds / seeds
        half = np.sqrt(np.maximum(squared * by_seed, least) + narrow**2 * by_row)
        return np.maximum(half, self.resolution)

    def p_value(self, at: float = 0.0) -> Values:
        """Return the two-sided p value of the hypothesis that the mean is `at`.

        It is the alpha whose interval ends there. Without any variance it is 1 at the mean and 0
        elsewhere.
        """
        distance = np.abs(self.mean - at)
        low, high = np.full(np.shape(self.mean), -40.0), np.zeros(np.shape(self.mean))
        for _ in range(BISECTIONS):  # of the logarithm of alpha
            middle = (low + high) / 2
            inside = self.half_width(np.exp(middle)) >= distance
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        exact = np.where(distance > max(EXACT, self.resolution), 0.0, 1.0)
        return np.where(self.standard_error > 0.0, np.exp(high), exact)


BISECTIONS = 40


def quantile(alpha: float | Values, freedom: float) -> Values:
    """Return what the absolute value of Student's t exceeds with a chance of alpha."""
    from scipy.special import ndtri, stdtrit

    half = np.asarray(alpha) / 2
    return -ndtri(half) if math.isinf(freedom) else -stdtrit(freedom, half)


UNSEEN = 4  # rows of a kind that none of those tested was of, at most, with 97.5% confidence


@dataclass(frozen=True)
class Sampling:
    """What is known of the samples behind the columns of a table of scores."""

    largest: float = 0.0  # largest difference of a row that was not asked; 0 where it has no bound
    sizes: tuple[int, ...] = ()  # rows of each task, in order, if the mean counts each alike
    weights: Values | None = None  # rows of each column, if columns are groups of rows

    def variance(self, by_row: Values, found: Values, rest: Values) -> Values:
        """Return the variance of the mean of rows [..., R] whose own variance is `found`.

        Few rows may agree by chance and would have no spread. So of shares `UNSEEN` further rows
        differ, as far as disagreements are the same whatever the seed (`found` against `rest`, the
        variance of the other part in one seed) and are of one sign, each with one row more: rows
        that are as often won as lost leave out neither.
        """
        rows, row = by_row.shape[-1], self.largest**2
        squares = rows * found + row
        alike = squares / np.maximum(squares + rows * rest, np.finfo(float).tiny)
        signed, every = (by_row * np.abs(by_row)).sum(axis=-1), (by_row**2).sum(axis=-1)
        one_sided = (np.abs(signed) + row) / np.maximum(every + row, np.finfo(float).tiny)
        return found / rows + UNSEEN * alike * one_sided * row / rows**2

    def tasks(self, scores: Values) -> list[tuple[Values, float]]:
        """Return the columns of each task, and the share of their variance in that of the mean."""
        if not self.sizes:
            return [(scores, 1.0)]
        count, tasks = len(self.sizes), []
        for columns in np.split(scores, np.cumsum(self.sizes)[:-1], axis=-1):
            mean, weight = columns.mean(axis=-1, keepdims=True), sum(self.sizes) / count
            tasks.append((mean + (columns - mean) * columns.shape[-1] / weight, count**-2.0))
        return tasks

    def skewness(self, by_row: Values) -> float | Values:
        """Return the skewness of the mean of rows [..., R]; 0 where a row is bounded or equal."""
        centred = by_row - by_row.mean(axis=-1, keepdims=True)
        second = np.maximum((centred**2).sum(axis=-1), EXACT**2)
        return 0.0 if self.largest else (centred**3).sum(axis=-1) / second**1.5

    @property
    def unit(self) -> str:
        return "test rows" if self.weights is None else "groups of test rows"

    @property
    def freedom(self) -> float | None:
        """Degrees of freedom of groups of unequal sizes: their effective number, less 1."""
        if self.weights is None:
            return None
        return max(1.0, float(self.weights.sum() ** 2 / (self.weights**2).sum()) - 1.0)


ROWS = Sampling()


def _satterthwaite(parts: list[tuple[Values, int]]) -> float | None:
    """Return the degrees of freedom of a sum of variances, each with its own."""
    total = sum(float(np.mean(variance)) for variance, _ in parts)
    squares = sum(float(np.mean(variance)) ** 2 / freedom for variance, freedom in parts)
    return total**2 / squares if len(parts) > 1 and squares else None


def estimate(scores: Any, sampling: Sampling = ROWS) -> Estimate:
    """Return the mean of scores and its variance over seeds and test rows.

    The scores are, for a comparison, differences between two mechanisms: one for each seed, whose
    weights and order of data the two share, and each row, which both answer. Seeds and rows are
    samples of what the verdict is about: other trainings, and other rows of the task. The model is
    that of a two-way layout with random effects,

        score[s, r] = mean + seed[s] + row[r] + rest[s, r],

    whose mean squares MS are those of an analysis of variance. The mean has the variance A + B,

        A = MS_seeds / (S R),   B = max(MS_rows - MS_rest, 0) / (S R).

    B is what no further seed removes: rows on which one mechanism is better whatever the seed.
    Without it the interval would hold for these rows alone. The interval of 1 - alpha is

        mean -+ sqrt(max(q^2 A, z^2 C) + z^2 B),
        q^2 = t^2 - (t^2 - z^2) (B / (A + B))^3,   C = MS_rest / (S R),

    where t is Student's quantile with S - 1 degrees of freedom and z that with R - 1: the t
    interval over seeds where rows do not matter, that over rows where seeds do not. Between them
    the uncertain variance of the few seeds weighs less the smaller its part. Satterthwaite's
    degrees of freedom, the usual choice, cover 87 to 93% with two or three seeds, as they trust an
    A that is small by chance; q = t ("modified large sample") covers up to 98%. A bootstrap over
    both resamples two to five seeds and underestimates their spread. `python -m
    benchmarks.verdict` prints the coverage of this interval. It is a formula, so that a table of 20
    seeds and 10,000 rows takes milliseconds.

    Of shares, B counts rows that were not asked (`Sampling.variance`). Where tasks count alike, B
    and C are sums over tasks, with Satterthwaite's degrees of freedom.

    Args:
        scores: [..., S, R]; or [..., S, 1] if only the mean over the rows of each seed is known.
        sampling: the rows as samples.

    Example:
        >>> found = estimate([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
        >>> float(found.mean), float(found.seed_variance), round(float(found.row_variance), 4)
        (0.625, 0.015625, 0.0417)

    Source: the model and A + B are those of Obuchowski and Rockette 1995 and of Hillis 2007 for
    readers (here seeds) and cases (rows); Graybill and Wang 1980 add squared half widths of
    variance components. The weight of q is ours.
    """
    scores = np.asarray(scores, dtype=np.float64)
    seeds, rows = scores.shape[-2:]
    parts = _mean_squares(scores)
    by_row, rest, freedoms = np.zeros_like(parts.mean), np.zeros_like(parts.mean), []
    for columns, share in sampling.tasks(scores) if rows > 1 else ():
        size, of_task = columns.shape[-1], _mean_squares(columns)
        found = np.maximum(_exact(of_task.rows - of_task.rest), 0.0) / seeds
        variance = share * sampling.variance(of_task.by_row, found, of_task.rest)
        least = share * of_task.rest / (seeds * size)
        by_row, rest = by_row + variance, rest + least
        freedoms.append((variance + least, size - 1))
    return Estimate(
        mean=parts.mean,
        seed_variance=parts.seeds / (seeds * rows),
        row_variance=by_row,
        seeds=seeds,
        rows=rows if rows > 1 else None,
        least_variance=rest,
        row_freedom=_satterthwaite(freedoms) or sampling.freedom,
        skewness=sampling.skewness(parts.by_row),
        unit=sampling.unit,
    )


@dataclass(frozen=True)
class _MeanSquares:
    """The analysis of variance of scores [..., S, R]; 0 for rows and rest where R = 1."""

    mean: Values
    seeds: Values
    rows: Values
    rest: Values
    by_row: Values  # mean of each row, [..., R]


def _mean_squares(scores: Values) -> _MeanSquares:
    seeds, rows = scores.shape[-2:]
    if seeds < 2:  # noqa: PLR2004
        raise ConfigError(f"seeds={seeds} give no spread; train at least 2.")
    # from a value in the middle on, so that equal scores have exactly no variance
    origin = scores[..., :1, :1]
    shifted = scores - origin
    by_seed, by_row = shifted.mean(axis=-1), shifted.mean(axis=-2)
    mean = by_seed.mean(axis=-1)
    squares_seeds = rows * ((by_seed - mean[..., None]) ** 2).sum(axis=-1)
    between_rows = rest = np.zeros_like(mean)
    if rows > 1:
        squares_rows = seeds * ((by_row - mean[..., None]) ** 2).sum(axis=-1)
        shifted -= mean[..., None, None]
        total = np.einsum("...sr,...sr->...", shifted, shifted)
        rest = np.maximum(total - squares_seeds - squares_rows, 0.0) / ((seeds - 1) * (rows - 1))
        between_rows = squares_rows / (rows - 1)
    return _MeanSquares(
        mean=mean + origin[..., 0, 0],
        seeds=_exact(squares_seeds / (seeds - 1)),
        rows=between_rows,
        rest=rest,
        by_row=by_row + origin[..., 0],
    )


def estimate_unpaired(candidate: Values, baseline: Values, sampling: Sampling = ROWS) -> Estimate:
    """Return the difference of two means whose seeds are not paired, and its variance.

    The seeds of each side vary by themselves, with Welch's degrees of freedom. Both sides answer
    the same rows, of which B is what no further seed of either removes:

        A = A_candidate + A_baseline,   B = max(Var(rows) / R - C, 0),
        C = (rest_c / S_c + rest_b / S_b) / R,

    where Var(rows) is the variance of the difference of each row's means over seeds.

    Args:
        candidate: scores [S_c, R]; [S_c, 1] if only one number of each seed is known.
        baseline: scores [S_b, R].
        sampling: the rows as samples.

    Example:
        >>> found = estimate_unpaired(np.array([[1.0], [3.0]]), np.array([[0.0], [2.0], [4.0]]))
        >>> float(found.mean), round(float(found.seed_variance), 4), round(found.freedom, 4)
        (0.0, 2.3333, 2.8824)

    Source: Welch 1947; for rows as `estimate`.
    """
    sides = [(_mean_squares(side), *side.shape) for side in (candidate, baseline)]
    variances = [float(part.seeds) / (seeds * rows) for part, seeds, rows in sides]
    squares = sum(v**2 / (seeds - 1) for v, (_, seeds, _) in zip(variances, sides, strict=True))
    (ours, _, rows), (theirs, _, _) = sides
    fewest = min(seeds for _, seeds, _ in sides)
    row_variance, least, freedoms = 0.0, 0.0, []
    tables = (sampling.tasks(table) if rows > 1 else () for table in (candidate, baseline))
    for (our_columns, share), (their_columns, _) in zip(*tables, strict=True):
        size = our_columns.shape[-1]
        squares_of = [_mean_squares(columns) for columns in (our_columns, their_columns)]
        rest = sum(float(p.rest) / n for p, (_, n, _) in zip(squares_of, sides, strict=True))
        by_row = squares_of[0].by_row - squares_of[1].by_row
        found = max(float(by_row.var(ddof=1)) - rest, 0.0)
        single = sum(float(part.rest) for part in squares_of)
        variance = share * float(sampling.variance(by_row, found, single))
        row_variance, least = row_variance + variance, least + share * rest / size
        freedoms.append((np.float64(variance + share * rest / size), size - 1))
    return Estimate(
        mean=ours.mean - theirs.mean,
        seed_variance=np.float64(sum(variances)),
        row_variance=np.float64(row_variance),
        seeds=fewest,
        rows=rows if rows > 1 else None,
        least_variance=least,
        freedom=sum(variances) ** 2 / squares if squares else fewest - 1.0,
        row_freedom=_satterthwaite(freedoms) or sampling.freedom,
        skewness=sampling.skewness(ours.by_row - theirs.by_row),
        unit=sampling.unit,
    )


def estimate_rows(scores: Values, sampling: Sampling = ROWS) -> Estimate:
    """Return the mean of the differences [1, R] of one seed, and its variance over rows alone."""
    row = np.asarray(scores, dtype=np.float64)[0]
    if len(row) < 2:  # noqa: PLR2004
        raise ConfigError(f"rows={len(row)} of one seed give no spread.")
    parts = []
    for columns, share in sampling.tasks(row):
        shifted, size = columns - columns[0], len(columns)
        found = _exact(shifted.var(ddof=1))
        parts.append((share * sampling.variance(columns, found, 0.0), size - 1))
    return Estimate(
        mean=row[0] + (row - row[0]).mean(),
        seed_variance=np.float64(0.0),
        row_variance=sum(variance for variance, _ in parts),
        seeds=1,
        rows=len(row),
        row_freedom=_satterthwaite(parts) or sampling.freedom,
        skewness=sampling.skewness(row),
        unit=sampling.unit,
    )


ALIKE = 0.1  # share of a disagreement that is the same whatever the seed, where it is not known


def bounded(found: Estimate, share: float, rows: float) -> Estimate:
    """Return an estimate of differences of shares, no surer than the number of test rows allows.

    Few seeds that agree by chance say nothing of other rows. The difference of one seed varies as
    if two models answered independently; `ALIKE` of that variance no further seed removes. Models
    that make the same mistakes vary less, so this errs to the safe side.
    """
    other = share - found.mean
    by_row = np.maximum(share * (1.0 - share) + other * (1.0 - other), 0.0) / rows
    return replace(
        found,
        least_variance=(1.0 - ALIKE) * by_row / found.seeds,
        row_variance=found.row_variance + ALIKE * by_row,
    )


ROWS_OVERLAP = 0.25  # share of the correction for overlapping training sets that rows take


def estimate_folds(scores: Any, folds: int, sampling: Sampling = ROWS) -> Estimate:
    """Return the mean of scores of a cross-validation, where rows are nested in folds.

    Seed s trains on all rows but those of a fold and is tested on these: score[s, r] = mean +
    fold[s] + row[s, r], where `fold` is the effect of the seed and of its training rows. Let V be
    the mean of the variances that the seeds' means have by their rows, and MS that between them:

        A = (1 + 2 q) max(MS - V, 0) / S,   B = (1 + q / 4) sum_r (sum_s row[s, r] / (S m[s]))^2

    with m[s] rows in a fold; B counts a row once, however often further partitions test it. The
    training sets overlap, which no estimate from the scores alone can see (Bengio and Grandvalet
    2004). Nadeau and Bengio 2003 multiply the whole variance by 1 + S q, q = 1 / (folds - 1) being
    the ratio of test to training rows. But different folds test different rows: in differences of
    two learners the variance is 0.9 to 1.3 times that of independent folds. A and B have multiples
    of q with which the intervals cover 94 to 98% in `python -m benchmarks.folds`, whatever the
    share of folds. The interval is that of `Estimate`: Student's where they matter, else normal.

    Args:
        scores: [S, R], NaN where a seed did not test a row.
        folds: folds of one partition; of fewer seeds, rows not tested yet count as seeds.
        sampling: the rows as samples.

    Example:
        >>> nan = float("nan")
        >>> found = estimate_folds([[0.0, 1.0, nan, nan], [nan, nan, 1.0, 0.0]], folds=2)
        >>> float(found.mean), float(found.seed_variance), float(found.row_variance), found.rows
        (0.5, 0.0, 0.15625, 4)
    """
    scores = np.asarray(scores, dtype=np.float64)
    if len(scores) < 2:  # noqa: PLR2004
        raise ConfigError(f"seeds={len(scores)} give no spread; train at least 2.")
    tested = ~np.isnan(scores)
    counts, rows, seeds = tested.sum(axis=1), int(tested.any(axis=0).sum()), len(scores)
    means = np.nanmean(scores, axis=1)
    rest = np.where(tested, scores - means[:, None], 0.0)
    of_means = _exact((rest**2).sum(axis=1) / np.maximum(counts - 1, 1)) / counts
    between = np.maximum(_exact(means.var(ddof=1)) - of_means.mean(), 0.0)
    scale = (counts / np.maximum(counts - 1, 1)).mean()
    by_row = _exact(scale * ((rest / counts[:, None]).sum(axis=0) ** 2).sum() / seeds**2)
    overlap, complete = 1.0 / (folds - 1), min(1.0, seeds / folds)
    by_row = by_row * (1.0 + ROWS_OVERLAP * overlap)
    # each row is tested by one seed, or few
    tested_rows = np.nanmean(scores[:, tested.any(axis=0)], axis=0)
    by_row = by_row + sampling.variance(tested_rows, 0.0, 0.0)
    return Estimate(
        mean=means.mean(),
        seed_variance=(1.0 + 2.0 * overlap) * between / seeds + (1.0 - complete) * by_row,
        row_variance=complete * by_row,
        seeds=seeds,
        rows=rows,
        row_freedom=sampling.freedom,
        skewness=sampling.skewness(rest.sum(axis=0)),
        unit=sampling.unit,
    )


def by_group(scores: Values, groups: Values) -> Values:
    """Return scores [S, G] of groups of rows, whose mean over groups is that over the rows.

    Rows of a group are answered alike, so that groups are the samples. A group of a seed with mean
    m over R rows in G groups has m + (G / R) sum_r (score[r] - m) over its own rows. A large group
    draws the mean to itself, so its sum is that to the mean of the others: it is divided by 1 less
    the share of its rows, relative to 1 - 1 / G. The variance of the mean over groups is then the
    jackknife's, right for groups of unequal sizes, too.

    Args:
        scores: [S, R], NaN where a seed did not test a row.
        groups: group of each row, [R].

    Example:
        >>> by_group(np.array([[0.0, 0.0, 1.0, 1.0]]), np.array([7, 7, 9, 9])).tolist()
        [[0.0, 1.0]]

    Source: Liang and Zeger 1986, the robust variance, here of a mean of clusters; Bell and
    McCaffrey 2002 for the bias of large ones.
    """
    names, place = np.unique(groups, return_inverse=True)
    tested, means = ~np.isnan(scores), np.nanmean(scores, axis=1, keepdims=True)
    sums, counts = np.zeros((2, len(scores), len(names)))
    np.add.at(sums, (slice(None), place), np.where(tested, scores - means, 0.0))
    np.add.at(counts, (slice(None), place), tested)
    rows, of = tested.sum(axis=1, keepdims=True), (counts > 0).sum(axis=1, keepdims=True)
    left_out = np.where(counts < rows, (of - 1) / of / np.maximum(1.0 - counts / rows, 1e-9), 1.0)
    spread = np.where(counts > 0, of / rows * sums * left_out, np.nan)
    return means + spread - np.nanmean(spread, axis=1, keepdims=True)


def rounded(found: Estimate, last_digit: float) -> Estimate:
    """Return an estimate of numbers that were rounded, no surer than their last digit allows.

    Rounding moves a difference by up to one unit of the last digit, in every seed alike where the
    seeds spread by less; it gives each seed at least the variance of two rounding errors.
    """
    least = np.maximum(found.seed_variance, last_digit**2 / 6 / found.seeds)
    return replace(found, seed_variance=least, resolution=last_digit)


def widen_for_folds(found: Estimate, folds: int) -> Estimate:
    """Multiply the variance over folds, of which only means are known, as A in `estimate_folds`."""
    return replace(found, seed_variance=(1.0 + 2.0 / (folds - 1)) * found.seed_variance)


def _exact(mean_square: Values) -> Values:
    """Return a mean square, 0 where it is rounding."""
    return np.where(np.abs(mean_square) <= EXACT**2, 0.0, mean_square)
