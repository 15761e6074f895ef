from __future__ import annotations

import pytest
from scipy.stats import binom

from suffice.measure.statistics import FAR, failed_seeds, upper_rate

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
