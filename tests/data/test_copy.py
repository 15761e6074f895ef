from __future__ import annotations

import pytest

from suffice.data import IGNORE_INDEX, load
from suffice.errors import ConfigError


@pytest.mark.parametrize("sizes", [{}, {"symbols": 300, "shortest": 3, "length": 5, "room": 5}])
def test_every_answer_is_the_symbol_so_many_tokens_back(sizes):
    given = {"symbols": 32, "shortest": 8, "length": 12, "room": 16, **sizes}
    symbols, shortest, length, room = given.values()
    task = load("copy", rows=200, **sizes)
    assert task.num_classes == symbols + 2
    assert task.chance == 1 / symbols
    lengths = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == 2 * room
        own = row[::-1].index(symbols + 1) + 1  # from the mark to the end
        blanks, shown = row[: 2 * (room - own)], row[2 * (room - own) : -own]
        assert set(blanks) <= {symbols}
        assert max(shown) < symbols
        assert row[-own:] == [symbols + 1, *shown[:-1]]
        assert labels == [IGNORE_INDEX] * (2 * room - own) + shown
        lengths.add(own)
    assert lengths == set(range(shortest, length + 1))


@pytest.mark.parametrize("sizes", [{"shortest": 13}, {"room": 11}])
def test_a_stretch_that_does_not_fit_is_refused(sizes):
    with pytest.raises(ConfigError, match="in room for .*; give shortest <= length <= room"):
        load("copy", **sizes)


def test_sizes_that_are_no_counts_are_refused():
    with pytest.raises(ConfigError, match="copy: symbols=0; give whole numbers of at least 1"):
        load("copy", symbols=0)
