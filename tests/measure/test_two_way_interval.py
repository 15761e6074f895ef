from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suffice.errors import ConfigError
from suffice.measure.two_way_interval import (
    ALIKE,
    bounded,
    by_group,
    estimate,
    estimate_folds,
    estimate_unpaired,
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


def test_without_rows_it_is_the_t_interval_of_the_seeds():
    values = np.random.default_rng(0).normal(size=6)
    found = estimate(values[:, None])
    low, high = stats.t.interval(0.9, 5, loc=values.mean(), scale=stats.sem(values))
    half = found.half_width(0.1)
    assert (found.mean - half, found.mean + half) == pytest.approx((low, high), abs=1e-12)
    assert found.p_value() == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-9)
    assert found.rows is None


def test_seeds_that_agree_leave_the_interval_of_the_rows():
    one = np.random.default_rng(1).normal(size=400)
    found = estimate(np.stack([one] * 5))
    low, high = stats.t.interval(0.95, 399, loc=one.mean(), scale=stats.sem(one))
    assert found.half_width(0.05) == pytest.approx((high - low) / 2, rel=1e-12)
    assert found.seed_variance == 0.0


def test_seeds_that_agree_by_chance_are_no_surer_than_their_rows():
    scores = table(3, 400)
    scores -= scores.mean(axis=1, keepdims=True)
    rest = ((scores - scores.mean(axis=0)) ** 2).sum() / (2 * 399)
    by_row = max(3 * scores.mean(axis=0).var(ddof=1) - rest, 0.0)
    expected = stats.t.isf(0.025, 399) * np.sqrt((rest + by_row) / 1200)
    assert float(estimate(scores).half_width(0.05)) == pytest.approx(expected, rel=1e-9)
    unpaired = estimate_unpaired(scores, np.zeros((3, 400)))
    assert float(unpaired.half_width(0.05)) == pytest.approx(expected, rel=1e-9)


def test_more_seeds_narrow_the_part_of_the_seeds_alone():
    found = estimate(table(5, 300, row=1.0))
    wide, wider = found.half_width_of(1000, 0.05), found.half_width_of(5, 0.05)
    rows_alone = stats.t.isf(0.025, 299) * np.sqrt(found.row_variance)
    assert rows_alone < wide < wider
    assert wide == pytest.approx(rows_alone, rel=0.01)


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


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("row", [0.0, 0.7])
def test_the_interval_covers_other_seeds_and_other_rows(seeds, row):
    rng = np.random.default_rng([seeds, int(10 * row)])
    effects = row * rng.normal(size=(1500, 1, 150)) + 0.05 * rng.normal(size=(1500, seeds, 1))
    found = estimate(effects + rng.normal(size=(1500, seeds, 150)))
    assert 0.925 < np.mean(np.abs(found.mean) <= found.half_width(0.05)) < 0.985


def test_one_seed_is_refused():
    with pytest.raises(ConfigError, match="seeds=1"):
        estimate([[0.5, 0.5]])


def test_what_the_rows_imply_falls_with_further_seeds_but_for_what_is_alike():
    found = bounded(estimate([[0.0], [0.0], [0.0]]), 0.8, 500)
    by_row = 2 * 0.8 * 0.2 / 500
    for seeds in (3, 12):
        variance = by_row * ((1 - ALIKE) / seeds + ALIKE)
        expected = stats.norm.isf(0.025) * np.sqrt(variance)
        assert float(found.half_width_of(seeds, 0.05)) == pytest.approx(expected, rel=1e-9)


def grouped_draws(rng, *, seeds=5, sizes=(1, 2, 3, 4, 10, 20, 2, 5, 8, 5) * 3):
    """Differences [S, R] around 0 whose rows share the effect of their group, and the groups."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    of_groups = rng.normal(0, 1.0, len(sizes))[groups]
    of_seeds = rng.normal(0, 0.1, (seeds, 1))
    return of_groups + of_seeds + rng.normal(0, 1.0, (seeds, len(groups))), groups


def test_intervals_of_groups_cover_where_those_of_rows_do_not():
    rng, covered = np.random.default_rng(0), np.zeros(2)
    for _ in range(1000):
        scores, groups = grouped_draws(rng)
        for place, table in enumerate((scores, by_group(scores, groups))):
            found = estimate(table)
            covered[place] += abs(float(found.mean)) <= float(found.half_width(0.05))
    of_rows, of_groups = covered / 1000
    assert of_rows < 0.75
    assert 0.91 < of_groups < 0.98


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
