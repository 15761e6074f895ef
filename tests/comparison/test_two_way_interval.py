from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suffice.comparison.two_way_interval import (
    ALIKE,
    UNSEEN,
    Sampling,
    bounded,
    by_group,
    estimate,
    estimate_folds,
    estimate_rows,
    estimate_unpaired,
    rounded,
)


def table(seeds: int, rows: int, *, row: float = 0.0, seed: float = 0.0, draw: int = 0):
    """Scores with mean 0 and effects of rows and seeds with these standard deviations."""
    rng = np.random.default_rng([draw, seeds, rows])
    effects = row * rng.normal(size=rows) + seed * rng.normal(size=(seeds, 1))
    return effects + rng.normal(size=(seeds, rows))


def test_mean_squares_are_those_of_the_textbook():
    # rows 1 2 3 and 2 2 5: grand mean 2.5, seed means 2, 3, row means 1.5, 2, 4
    found = estimate([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]])
    squares_seeds, squares_rows, total = 3 * 0.5, 2 * (1 + 0.25 + 2.25), 9.5
    rest = (total - squares_seeds - squares_rows) / 2
    assert found.mean == pytest.approx(2.5, abs=1e-15)
    assert found.seed_variance == pytest.approx(squares_seeds / 6, abs=1e-15)
    assert found.row_variance == pytest.approx((squares_rows / 2 - rest) / 6, abs=1e-15)


def test_seeds_that_agree_by_chance_are_no_surer_than_their_rows():
    scores = table(3, 400)
    scores -= scores.mean(axis=1, keepdims=True)
    rest = ((scores - scores.mean(axis=0)) ** 2).sum() / (2 * 399)
    by_row = max(3 * scores.mean(axis=0).var(ddof=1) - rest, 0.0)
    expected = stats.t.isf(0.025, 399) * np.sqrt((rest + by_row) / 1200)
    assert float(estimate(scores).half_width(0.05)) == pytest.approx(expected, rel=1e-9)
    unpaired = estimate_unpaired(scores, np.zeros((3, 400)))
    assert float(unpaired.half_width(0.05)) == pytest.approx(expected, rel=1e-9)


def test_equal_scores_have_no_width_and_a_p_value_of_0_or_1():
    found = estimate(np.full((4, 7), 0.1))
    assert (found.mean, found.half_width(0.05)) == (0.1, 0.0)
    assert (found.p_value(0.1), found.p_value(0.0)) == (1.0, 0.0)


def test_many_tables_at_once_are_each_as_alone():
    scores = np.stack([table(3, 50, row=1.0, draw=draw) for draw in range(4)])
    found = estimate(scores)
    for number in range(4):
        alone = estimate(scores[number])
        assert found.half_width(0.05)[number] == pytest.approx(alone.half_width(0.05), rel=1e-12)
        assert found.p_value()[number] == pytest.approx(alone.p_value(), rel=1e-9)


def test_the_p_value_is_the_alpha_whose_interval_ends_there():
    found = estimate(table(4, 200, row=0.5, draw=3))
    at = float(found.mean) + float(found.half_width(0.03))
    assert found.p_value(at) == pytest.approx(0.03, rel=1e-6)


def test_what_the_rows_imply_falls_with_further_seeds_but_for_what_is_alike():
    found = bounded(estimate([[0.0], [0.0], [0.0]]), 0.8, 500)
    by_row = 2 * 0.8 * 0.2 / 500
    for seeds in (3, 12):
        variance = by_row * ((1 - ALIKE) / seeds + ALIKE)
        expected = stats.norm.isf(0.025) * np.sqrt(variance)
        assert float(found.half_width_of(seeds, 0.05)) == pytest.approx(expected, rel=1e-9)


SHARES = Sampling(largest=1.0)


def unseen(row: np.ndarray, alone: float, rest: float) -> float:
    """Variance of the mean of rows by those that were not asked."""
    same = (len(row) * alone + 1) / (len(row) * alone + 1 + len(row) * rest)
    lost, won = (sum(x**2 for x in row if sign * x > 0) for sign in (-1, 1))
    return UNSEEN * same * (abs(lost - won) + 1) / (lost + won + 1) / len(row) ** 2


def test_shares_count_rows_that_were_not_asked_as_far_as_disagreements_are_alike():
    rng = np.random.default_rng(4)
    scores = (rng.random(70) < 0.1) - (rng.random((3, 70)) < 0.05).astype(float)
    by_row, by_seed = scores.mean(axis=0), scores.mean(axis=1)
    rest = sum(
        (scores[s, r] - by_row[r] - by_seed[s] + scores.mean()) ** 2
        for s in range(3)
        for r in range(70)
    ) / (2 * 69)
    alone = by_row.var(ddof=1) - rest / 3
    expected = alone / 70 + unseen(by_row, alone, rest)
    assert alone > 0.0
    assert float(estimate(scores, SHARES).row_variance) == pytest.approx(expected, rel=1e-12)
    baseline = (rng.random((2, 70)) < 0.2).astype(float)
    between = baseline.mean(axis=0) + baseline.mean(axis=1, keepdims=True) - baseline.mean()
    of_baseline = ((baseline - between) ** 2).sum() / 69
    alone = (by_row - baseline.mean(axis=0)).var(ddof=1) - rest / 3 - of_baseline / 2
    added = unseen(by_row - baseline.mean(axis=0), alone, rest + of_baseline)
    unpaired = estimate_unpaired(scores, baseline, SHARES)
    assert float(unpaired.row_variance) == pytest.approx(alone / 70 + added)
    assert unpaired.least_variance == pytest.approx((rest / 3 + of_baseline / 2) / 70)


@pytest.mark.parametrize("seeds", [2, 5])
def test_seeds_that_answer_alike_are_as_sure_as_one(seeds):
    one = -(np.arange(90) < 3).astype(float)[None]
    single, several = estimate_rows(one, SHARES), estimate(np.repeat(one, seeds, axis=0), SHARES)
    assert single.row_variance == pytest.approx(one.var(ddof=1) / 90 + 4 / 90**2, rel=1e-12)
    assert several.half_width(0.05) == pytest.approx(single.half_width(0.05), rel=1e-12)
    none = estimate(np.zeros((seeds, 90)), SHARES)
    assert none.half_width(0.05) == pytest.approx(stats.t.isf(0.025, 89) * 2 / 90, rel=1e-12)


def test_no_interval_is_narrower_than_the_digits():
    equal = rounded(estimate(np.full((3, 1), -0.01)), 0.01)
    by_digit = stats.t.isf(0.025, 2) * 0.01 * np.sqrt(2 / 12 / 3)  # of two rounding errors
    assert equal.half_width(0.05) == pytest.approx(max(0.01, by_digit), rel=1e-9)
    many = rounded(estimate(np.full((20, 1), -0.01)), 0.01)
    assert (many.half_width(0.05), float(many.p_value(-0.001))) == (0.01, 1.0)
    spread = estimate(np.array([[0.0], [-0.5], [0.7], [0.2]]))
    assert rounded(spread, 0.01).half_width(0.05) == spread.half_width(0.05)


def test_tasks_count_alike_with_a_variance_and_degrees_of_freedom_of_their_own():
    rng, sizes = np.random.default_rng(6), (30, 7, 200)
    rows = [rng.normal(0, scale, (4, size)) for scale, size in zip((1, 3, 2), sizes, strict=True)]
    mean = np.mean([task.mean(axis=1) for task in rows], axis=0)
    table = np.concatenate(
        [
            mean[:, None] + (task - task.mean(axis=1, keepdims=True)) * 237 / (3 * task.shape[1])
            for task in rows
        ],
        axis=1,
    )
    parts = [estimate(task) for task in rows]
    found = estimate(table, Sampling(sizes=sizes))
    variances = [float(part.row_variance + part.least_variance) / 9 for part in parts]
    assert float(found.mean) == pytest.approx(mean.mean(), abs=1e-12)
    assert float(found.row_variance + found.least_variance) == pytest.approx(sum(variances))
    squares = sum(v**2 / (size - 1) for v, size in zip(variances, sizes, strict=True))
    assert found.row_freedom == pytest.approx(sum(variances) ** 2 / squares)
    assert float(found.seed_variance) == pytest.approx(mean.var(ddof=1) / 4)
    single = estimate_rows(table[:1], Sampling(sizes=sizes))
    expected = sum(task[0].var(ddof=1) / size / 9 for task, size in zip(rows, sizes, strict=True))
    assert single.row_variance == pytest.approx(expected)


def grouped_draws(rng, *, seeds=5, sizes=(1, 2, 3, 4, 10, 20, 2, 5, 8, 5) * 3):
    """Differences [S, R] around 0 whose rows share the effect of their group, and the groups."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    of_groups = rng.normal(0, 1.0, len(sizes))[groups]
    of_seeds = rng.normal(0, 0.1, (seeds, 1))
    return of_groups + of_seeds + rng.normal(0, 1.0, (seeds, len(groups))), groups


def test_intervals_of_groups_in_folds_cover():
    rng, covered = np.random.default_rng(0), np.zeros(2)
    for _ in range(1000):
        scores, groups = grouped_draws(rng)
        scores[groups % 5 != np.arange(5)[:, None]] = np.nan  # a group is in one fold
        for place, table in enumerate((scores, by_group(scores, groups))):
            found = estimate_folds(table, 5)
            covered[place] += abs(float(found.mean)) <= float(found.half_width(0.05))
    of_rows, of_groups = covered / 1000
    assert of_rows < of_groups
    assert 0.91 < of_groups < 0.99


def test_a_group_of_one_row_each_is_a_row_and_means_stay():
    rng = np.random.default_rng(1)
    scores, groups = grouped_draws(rng)
    assert by_group(scores, np.arange(len(groups))) == pytest.approx(scores)
    assert by_group(scores, groups).mean(axis=1) == pytest.approx(scores.mean(axis=1))
    scores[:, groups < 12] = np.nan  # rows of another fold
    table = by_group(scores, groups)
    assert np.isnan(table).all(axis=0).sum() == 12
    assert np.nanmean(table, axis=1) == pytest.approx(np.nanmean(scores, axis=1))
