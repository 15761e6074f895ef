from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom

from suffice.errors import ConfigError
from suffice.utils.statistics import (
    FAR,
    Summary,
    failed_seeds,
    half_width,
    holm,
    pair,
    summarise,
    t_quantile,
    upper_rate,
)


def test_summary_of_a_worked_example():
    # 0.95 t interval with 4 degrees of freedom: t = 2.7764451
    summary = summarise([0.96, 0.97, 0.98, 0.97, 0.97])
    assert summary.n == 5
    assert summary.mean == pytest.approx(0.97, abs=1e-15)
    assert summary.sd == pytest.approx(0.0070710678, abs=1e-9)
    assert summary.high - summary.mean == pytest.approx(2.7764451 * 0.0070710678 / 5**0.5, abs=1e-9)
    assert summary.mean - summary.low == pytest.approx(summary.high - summary.mean, abs=1e-15)


def test_summary_agrees_with_scipy():
    values = list(np.random.default_rng(0).normal(size=9))
    low, high = stats.t.interval(0.9, 8, loc=np.mean(values), scale=stats.sem(values))
    summary = summarise(values, level=0.9)
    assert (summary.low, summary.high) == pytest.approx((low, high), abs=1e-12)


def test_one_value_has_no_interval():
    summary = summarise([0.97])
    assert (summary.n, summary.mean) == (1, 0.97)
    assert (summary.sd, summary.low, summary.high) == (None, None, None)


@pytest.mark.parametrize("values", [[math.inf, math.inf], [math.inf, 1.0], [1.0, 2.0, math.inf]])
def test_values_that_ran_away_have_no_interval(values):
    wanted = Summary(n=len(values), mean=math.inf, sd=None, low=None, high=None)
    assert summarise(values) == wanted
    assert math.isnan(summarise([1.0, math.nan]).mean)


def test_values_whose_squares_are_no_floats_have_a_spread():
    assert summarise([1e200, 2e200]).sd == pytest.approx(1e200 / math.sqrt(2), rel=1e-15)


def test_equal_values_have_an_interval_of_their_own_value():
    summary = summarise([0.1] * 7)
    assert (summary.mean, summary.sd, summary.low, summary.high) == (0.1, 0.0, 0.1, 0.1)


def test_values_equal_but_for_rounding_have_no_spread():
    assert summarise([0.97 - 0.95, 0.96 - 0.94, 0.03 - 0.01]).sd == 0.0


def test_no_values_are_refused():
    with pytest.raises(ConfigError, match="no values to summarise; give at least one"):
        summarise([])


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_fraction(level):
    with pytest.raises(ConfigError, match="is not a confidence"):
        summarise([1.0, 2.0], level=level)


def test_pairing_keeps_shared_seeds_only():
    pairing = pair({3: 0.5, 0: 0.75, 1: 1.0}, {0: 0.5, 3: 0.25, 7: 0.0})
    assert pairing.seeds == (0, 3)
    assert pairing.differences == (0.25, 0.25)
    assert pairing.left_out == (1, 7)


def test_holm_of_a_worked_example():
    # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 and never falling
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02), abs=1e-15)


def test_holm_never_passes_one_and_keeps_a_single_value():
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([0.03]) == (0.03,)
    assert holm([]) == ()


def test_half_width_is_exactly_zero_without_spread():
    assert half_width(0.0, 5) == 0.0
    assert half_width(0.02, 4) == pytest.approx(t_quantile(0.95, 3) * 0.01, abs=1e-15)


SOLVED = [0.9982, 0.9980, 0.9983]


def seeds_of(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize("trials", [1, 3, 5, 12])
def test_the_open_rate_is_that_at_which_so_few_failures_have_a_chance_of_1_in_20(trials):
    assert upper_rate(0, trials) == pytest.approx(1 - 0.05 ** (1 / trials), rel=1e-9)
    for events in range(trials):
        rate = upper_rate(events, trials)
        assert binom.cdf(events, trials, rate) == pytest.approx(0.05, rel=1e-9)
    assert upper_rate(trials, trials) == 1.0


@pytest.mark.parametrize(
    ("values", "failed"),
    [
        ((0.997, 0.995, 0.601), (2,)),
        ((0.994, 0.860), (1,)),
        ((0.601, 0.997, 0.595, 0.996), (0, 2)),
        ((0.969, 0.9913), ()),  # two points: slower, within five margins
        ((0.628, 0.624, 0.625), ()),  # worse in every seed alike: no failure of seeds
        ((0.997, float("nan"), float("-inf")), (1, 2)),
    ],
)
def test_a_seed_far_below_the_others_and_the_baseline_failed(values, failed):
    assert failed_seeds(seeds_of(*values), SOLVED, margin=0.01) == failed


def test_a_seed_far_below_its_own_others_but_not_below_the_baseline_did_not_fail():
    better = seeds_of(0.99, 0.989, 0.80)
    assert failed_seeds(better, [0.80, 0.801, 0.799], margin=0.01) == ()


def test_a_seed_at_the_floor_failed_though_no_other_seed_is_better():
    values = seeds_of(0.128, 0.121, 0.127)
    assert failed_seeds(values, SOLVED, margin=0.01, noise=0.01) == ()
    assert failed_seeds(values, SOLVED, margin=0.01, noise=0.01, floor=0.125) == (0, 1, 2)


def test_a_baseline_that_is_little_above_the_floor_makes_no_seed_a_failure():
    near = seeds_of(0.56, 0.57, 0.55)
    assert failed_seeds(near, [0.58, 0.57, 0.56], margin=0.01, noise=0.025, floor=0.54) == ()


def test_the_baseline_is_judged_by_its_own_seeds():
    assert failed_seeds(seeds_of(0.998, 0.601, 0.997), margin=0.01) == (1,)
    assert failed_seeds(seeds_of(0.998, 0.601), margin=0.01) == ()  # which of two is unknown


def test_few_test_rows_excuse_a_distance():
    values = seeds_of(0.80, 0.79, 0.72)
    baseline = [0.80, 0.799, 0.801]
    assert failed_seeds(values, baseline, margin=0.01, noise=0.001) == (2,)
    assert failed_seeds(values, baseline, margin=0.01, noise=0.02) == ()


def test_exactly_five_margins_are_not_far():
    assert failed_seeds(seeds_of(1.0, 1.0, 1.0 - FAR / 64), [1.0, 1.0], margin=1 / 64) == ()
    assert failed_seeds(seeds_of(1.0, 1.0, 0.99 - FAR / 64), [1.0, 1.0], margin=1 / 64) == (2,)
