from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from suffice.errors import ConfigError
from suffice.measure.sequential import FIRST, level


def test_a_single_look_has_the_level_of_a_fixed_design():
    assert level(0.05, 3, 3) == pytest.approx(0.05)


def test_looking_after_each_seed_misses_as_often_as_alpha_says():
    means = np.random.default_rng(0).normal(size=(100_000, 10)).cumsum(axis=1)
    missed = np.zeros(len(means), dtype=bool)
    for seeds in range(FIRST, 11):
        bound = norm.isf(level(0.05, seeds, 10) / 2) * np.sqrt(seeds)
        missed |= np.abs(means[:, seeds - 1]) > bound
    assert missed.mean() == pytest.approx(0.05, abs=0.003)


def test_more_looks_leave_less_for_each():
    assert level(0.05, 5, 20) < level(0.05, 5, 10) < level(0.05, 5, 5) < 0.05


@pytest.mark.parametrize(("alpha", "seeds", "most"), [(0.05, 2, 5), (0.05, 6, 5), (1.0, 3, 5)])
def test_impossible_looks_are_refused(alpha, seeds, most):
    with pytest.raises(ConfigError, match=f"seeds={seeds}, most={most}"):
        level(alpha, seeds, most)
