from __future__ import annotations

import pytest

from suffice.data import IGNORE_INDEX, load
from suffice.errors import ConfigError


@pytest.mark.parametrize("sizes", [{}, {"symbols": 20, "length": 9, "repeated": 3}])
def test_every_answer_is_what_followed_the_symbol_last_time(sizes):
    given = {"symbols": 16, "length": 16, "repeated": 8, **sizes}
    symbols, length, repeated = given.values()
    task = load("induction", rows=200, **sizes)
    assert task.num_classes == symbols
    starts = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == length + repeated
        shown, again = row[:length], row[length:]
        assert len(set(shown)) == length
        assert labels[:length] == [IGNORE_INDEX] * length
        assert labels[length:] == [shown[shown.index(symbol) + 1] for symbol in again]
        assert labels[length:-1] == again[1:], "one stretch"
        starts.add(shown.index(again[0]))
    assert starts == set(range(length - repeated))


def test_chance_is_a_guess_among_the_symbols_not_shown_again():
    # the first answer is one of 4 others, the second one of 3
    task = load("induction", symbols=60, length=5, repeated=2, rows=9)
    assert task.chance == pytest.approx((1 / 4 + 1 / 3) / 2)


@pytest.mark.parametrize("sizes", [{"repeated": 16}, {"symbols": 15}, {"length": 8}])
def test_a_stretch_that_does_not_fit_is_refused(sizes):
    with pytest.raises(ConfigError, match="so give repeated < length <= symbols"):
        load("induction", **sizes)


def test_sizes_that_are_no_counts_are_refused():
    with pytest.raises(ConfigError, match="induction: length='9'; give whole numbers of at least"):
        load("induction", length="9")
