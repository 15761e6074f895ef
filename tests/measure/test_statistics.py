from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from suffice.errors import ConfigError
from suffice.measure.statistics import (
    Summary,
    half_width,
    holm,
    pair,
    summarise,
    t_quantile,
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
