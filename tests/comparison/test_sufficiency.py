from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from suffice.comparison.sufficiency import FIRST, level, most_seeds
from suffice.comparison.verdict import judge
from suffice.errors import ConfigError

from .synthetic import from_accuracies


def test_a_single_look_has_the_level_of_a_fixed_design():
    assert level(0.05, 3, 3) == pytest.approx(0.05)


def test_looking_after_each_seed_misses_as_often_as_alpha_says():
    means = np.random.default_rng(0).normal(size=(100_000, 10)).cumsum(axis=1)
    missed = np.zeros(len(means), dtype=bool)
    for seeds in range(FIRST, 11):
        bound = norm.isf(level(0.05, seeds, 10) / 2) * np.sqrt(seeds)
        missed |= np.abs(means[:, seeds - 1]) > bound
    assert missed.mean() == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(("alpha", "seeds", "most"), [(0.05, 2, 5), (0.05, 6, 5), (1.0, 3, 5)])
def test_impossible_looks_are_refused(alpha, seeds, most):
    with pytest.raises(ConfigError, match=f"seeds={seeds}, most={most}"):
        level(alpha, seeds, most)


@pytest.mark.parametrize(
    ("command", "seeds", "most"),
    [
        ("suffice compare --seeds 5", (5, 5), None),
        ("suffice compare --task mqar", (5, 5), None),
        ("suffice compare --seeds 3\nsuffice compare --resume --seeds 5", (5, 5), 5),
        ("suffice compare --task mqar\nsuffice compare --resume --seeds=8", (8, 8), 8),
        ("suffice reproduce v2-imdb --run --seeds 5", (5, 5), None),
        ("suffice reproduce atlas-mqar8-70k --run --seeds 3", (3, 3), 5),
        ("suffice reproduce atlas-mqar8-70k --run --seeds 3", (5, 5), 5),
        ("suffice reproduce atlas-mqar8-70k --run", (5, 3), 5),
        ("suffice reproduce atlas-mqar8-70k --run --seeds 10", (10, 6), 10),
        ("suffice.compare(train, ...)", (7, 7), None),
    ],
)
def test_commands_tell_whether_seeds_were_added_after_a_look(command, seeds, most):
    values = {"standard": [0.9] * seeds[0], "a": [0.9] * seeds[1]}
    assert most_seeds(from_accuracies(values, command=command)) == most
    assert most_seeds(from_accuracies(values, command=command, most_seeds=12)) == 12


def test_a_table_that_tops_up_is_judged_at_the_levels_of_its_looks():
    values = {"standard": [0.97] * 3, "a": [0.965, 0.97, 0.968]}
    command = "suffice reproduce atlas-mqar8-70k --run --seeds 3"
    found = judge(from_accuracies(values, command=command)).comparisons[0]
    assert found.confidence == pytest.approx(1 - level(0.05, 3, 5))
