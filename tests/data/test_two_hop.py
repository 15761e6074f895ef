from __future__ import annotations

import pytest

from suffice.data import IGNORE_INDEX, load
from suffice.errors import ConfigError


@pytest.mark.parametrize("sizes", [{}, {"chains": 2, "symbols": 9}])
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_answer_is_at_the_end_of_the_chain(sizes, part):
    chains, symbols = {"chains": 3, "symbols": 6, **sizes}.values()
    task = load("two_hop", rows=100, **sizes)
    assert task.num_classes == 4 * symbols
    assert task.chance == 1 / chains
    orders = set()
    split = getattr(task, part)
    for row, labels in zip(split.inputs.tolist(), split.labels.tolist(), strict=True):
        assert len(row) == 7 * chains
        facts = dict(zip(row[: 4 * chains : 2], row[1 : 4 * chains : 2], strict=True))
        first, second = row[4 * chains : 6 * chains], row[6 * chains :]
        starts = sorted(key for key in facts if key < symbols)
        assert sorted(second) == starts
        assert sorted(first) == sorted(facts)
        # a b that is found leads on as the token one kind before
        ends = [facts[facts[key] - symbols] for key in second]
        assert {end // symbols for end in ends} == {3}
        one = [facts[key] for key in first] if part == "train" else [IGNORE_INDEX] * 2 * chains
        assert labels == [IGNORE_INDEX] * 4 * chains + one + ends
        orders.add(tuple(starts.index(key) for key in second))
    assert len(orders) > 1


def test_more_chains_than_symbols_are_refused():
    with pytest.raises(ConfigError, match="so give as many symbols as chains, or more"):
        load("two_hop", chains=7)


def test_sizes_that_are_no_counts_are_refused():
    with pytest.raises(ConfigError, match="two_hop: chains='2'; give whole numbers of at least 1"):
        load("two_hop", chains="2")
