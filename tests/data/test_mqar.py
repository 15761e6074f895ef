from __future__ import annotations

import pytest

from suffice.data import IGNORE_INDEX, load
from suffice.errors import ConfigError


@pytest.mark.parametrize("sizes", [{}, {"pairs": 3, "keys": 9, "values": 12}])
def test_every_answer_is_the_value_that_stood_behind_the_key(sizes):
    given = {"pairs": 8, "keys": 16, "values": 16, **sizes}
    pairs, keys, values = given.values()
    task = load("mqar", rows=50, **sizes)
    assert task.num_classes == keys + values
    assert task.chance == 1 / pairs
    orders = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == 3 * pairs
        own, theirs, asked = row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], row[2 * pairs :]
        assert len(set(own)) == len(set(theirs)) == pairs
        assert set(own) <= set(range(keys))
        assert set(theirs) <= set(range(keys, keys + values))
        assert sorted(asked) == sorted(own)
        assert labels[: 2 * pairs] == [IGNORE_INDEX] * (2 * pairs)
        table = dict(zip(own, theirs, strict=True))
        assert labels[2 * pairs :] == [table[key] for key in asked]
        orders.add(tuple(own.index(key) for key in asked))
    assert len(orders) > 5


def test_every_key_and_value_is_used_about_as_often():
    task = load("mqar")
    counts = task.train.inputs[:, :16].flatten().bincount(minlength=32)
    assert counts.min() > 0.93 * 8_192 * 8 / 16
    assert counts.max() < 1.07 * 8_192 * 8 / 16


@pytest.mark.parametrize("sizes", [{"keys": 7}, {"values": 7}, {"pairs": 17}])
def test_fewer_keys_or_values_than_pairs_are_refused(sizes):
    with pytest.raises(ConfigError, match="those of a row are all different, so give as many keys"):
        load("mqar", **sizes)


def test_sizes_that_are_no_counts_are_refused():
    with pytest.raises(ConfigError, match=r"mqar: pairs=0, keys=2\.5; give whole numbers of at le"):
        load("mqar", pairs=0, keys=2.5)
