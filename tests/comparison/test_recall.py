"""Seeds that solve a task of recall, and what they say of a mechanism."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from suffice.comparison.recall import UNSOLVED, Solved, is_open, recalls
from suffice.comparison.sufficiency import FAILS, SUFFICES, UNDECIDED
from tests.comparison.synthetic import make_cell, solving


def seeds(count: int, of: int) -> Solved:
    return Solved(count=count, seeds=of, epochs=(3,) * count + (None,) * (of - count))


def test_a_seed_solves_a_task_in_the_first_epoch_that_is_accurate_enough():
    cells = [solving(make_cell(epochs=4), solves) for solves in (True, False, True)]
    solved = Solved.of(cells, 0.995)
    assert (solved.count, solved.seeds, solved.epochs) == (2, 3, (4, None, 4))
    assert solved.median_epochs == 4
    assert seeds(1, 2).median_epochs is None  # censored: half of them never did


@pytest.mark.parametrize(("count", "of"), [(0, 3), (3, 3), (2, 5), (7, 10)])
def test_the_interval_is_that_of_clopper_and_pearson(count, of):
    exact = binomtest(count, of).proportion_ci(0.95, method="exact")
    assert seeds(count, of).interval == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(
    ("count", "of", "word", "goes_on"),
    [
        (2, 2, UNDECIDED, True),
        (4, 4, UNDECIDED, True),
        (5, 5, SUFFICES, False),
        (0, 3, UNDECIDED, True),
        (0, 5, FAILS, False),
        (2, 6, UNDECIDED, True),
        (7, 8, UNDECIDED, False),  # never all, and never shown to be rarer
        (9, 10, UNDECIDED, False),
        (4, 10, FAILS, False),
    ],
)
def test_words_are_of_counts_and_stop_where_they_stand(count, of, word, goes_on):
    baseline = seeds(of, of)
    assert recalls(seeds(count, of), baseline) == word
    assert is_open(seeds(count, of), baseline) is goes_on


@pytest.mark.parametrize(("of", "word"), [(1, UNDECIDED), (2, UNDECIDED), (3, UNSOLVED)])
def test_three_seeds_show_that_the_baseline_never_solves_a_task(of, word):
    assert recalls(seeds(1, 4), seeds(0, of)) == word


def test_what_standard_never_solves_says_something_of_who_always_does():
    baseline = seeds(0, 15)
    assert recalls(seeds(0, 5), baseline) == UNSOLVED == recalls(seeds(4, 5), baseline)
    assert not is_open(seeds(0, 3), baseline)
    assert not is_open(seeds(2, 3), baseline)
    assert recalls(seeds(3, 3), baseline) == UNDECIDED
    assert is_open(seeds(3, 3), baseline)
    assert recalls(seeds(5, 5), baseline) == SUFFICES
