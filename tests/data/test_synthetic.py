from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from suffice.data import IGNORE_INDEX, load, synthetic
from suffice.errors import ConfigError

# drawn

NAMES = ("mqar", "induction", "passkey", "copy", "two_hop")
# of the tokens and labels of every part, int64; other rows would make other results
DIGESTS = {
    "mqar": "c69c2d75057e9757",
    "induction": "8c2cd840cba7303c",
    "passkey": "b4e21249a390ba15",
    "copy": "38fde4d1bcdc938c",
    "two_hop": "ef4a2d9dd511c0c2",
}


def parts(dataset):
    return {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}


@pytest.fixture(scope="module", params=NAMES)
def task(request):
    return load(request.param)


def test_the_sizes_are_as_documented(task):
    assert [len(split) for split in parts(task).values()] == [8_192, 512, 1_024]
    assert "drawn at random, after " in task.source
    for split in parts(task).values():
        assert split.inputs.dtype == split.labels.dtype == torch.int64
        assert split.valid is None
        assert int(split.inputs.min()) >= 0
        assert int(split.inputs.max()) < task.num_classes


def test_no_row_is_in_two_parts_or_twice(task):
    rows = torch.cat([split.inputs for split in parts(task).values()])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 9_728


def test_rows_are_the_same_everywhere(task):
    digest = hashlib.sha256()
    for split in parts(task).values():
        digest.update(split.inputs.numpy().tobytes() + split.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[task.name]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_a_function_of_its_seed_alone(name):
    np.random.seed(3)
    torch.manual_seed(3)
    few, again = load(name, rows=40), load(name, rows=60)
    other = load(name, rows=40, seed=1)
    for part in ("validation", "test"):
        here, there, elsewhere = (parts(task)[part] for task in (few, again, other))
        assert torch.equal(here.inputs, there.inputs), "the size of train does not matter"
        assert torch.equal(here.labels, there.labels)
        assert not torch.equal(here.inputs, elsewhere.inputs)
    assert len(few.train) == 40
    assert len(again.train) == 60


@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_are_no_counts_are_refused(name):
    with pytest.raises(ConfigError, match=rf"{name}: rows=0; give whole numbers of at least 1"):
        load(name, rows=0)
    with pytest.raises(ConfigError, match=rf"{name}: seed=-1; give whole numbers of at least 0"):
        load(name, seed=-1)
    with pytest.raises(ConfigError, match=rf"{name}: rows=True; give whole numbers"):
        load(name, rows=True)


def test_too_few_different_rows_are_refused():
    message = "mqar: a row of validation is one of train too, so few different rows do these sizes"
    with pytest.raises(ConfigError, match=message):
        load("mqar", pairs=1, keys=2, values=2)


def test_subsets_are_in_random_order_without_repetition():
    result = synthetic.subsets(synthetic.stream("a", "b", 0), 4_000, of=3, size=2)
    kinds, counts = np.unique(result, axis=0, return_counts=True)
    assert kinds.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert counts.min() > 600


def test_streams_differ_by_task_part_and_seed():
    keys = [("a", "b", 0), ("c", "b", 0), ("a", "d", 0), ("a", "b", 1)]
    assert len({synthetic.stream(*key).randint(2**31) for key in keys}) == 4


# copy


@pytest.mark.parametrize("sizes", [{}, {"symbols": 300, "shortest": 3, "length": 5, "room": 5}])
def test_every_answer_is_the_symbol_so_many_tokens_back(sizes):
    options = {"symbols": 32, "shortest": 8, "length": 12, "room": 16, **sizes}
    symbols, shortest, length, room = options.values()
    task = load("copy", rows=200, **sizes)
    assert task.num_classes == symbols + 2
    assert task.chance == 1 / symbols
    lengths = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == 2 * room
        from_row = row[::-1].index(symbols + 1) + 1  # from the mark to the end
        blanks, stretch = row[: 2 * (room - from_row)], row[2 * (room - from_row) : -from_row]
        assert set(blanks) <= {symbols}
        assert max(stretch) < symbols
        assert row[-from_row:] == [symbols + 1, *stretch[:-1]]
        assert labels == [IGNORE_INDEX] * (2 * room - from_row) + stretch
        lengths.add(from_row)
    assert lengths == set(range(shortest, length + 1))


@pytest.mark.parametrize("sizes", [{"shortest": 13}, {"room": 11}])
def test_a_stretch_that_does_not_fit_is_refused(sizes):
    with pytest.raises(ConfigError, match="in room for .*"):
        load("copy", **sizes)


# induction


@pytest.mark.parametrize("sizes", [{}, {"symbols": 20, "length": 9, "repeated": 3}])
def test_every_answer_is_what_followed_the_symbol_last_time(sizes):
    options = {"symbols": 16, "length": 16, "repeated": 8, **sizes}
    symbols, length, repeated = options.values()
    task = load("induction", rows=200, **sizes)
    assert task.num_classes == symbols
    starts = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == length + repeated
        stretch, again = row[:length], row[length:]
        assert len(set(stretch)) == length
        assert labels[:length] == [IGNORE_INDEX] * length
        assert labels[length:] == [stretch[stretch.index(symbol) + 1] for symbol in again]
        assert labels[length:-1] == again[1:], "one stretch"
        starts.add(stretch.index(again[0]))
    assert starts == set(range(length - repeated))


def test_chance_is_a_guess_among_the_symbols_not_shown_again():
    # the first answer is one of 4 others, the second one of 3
    task = load("induction", symbols=60, length=5, repeated=2, rows=9)
    assert task.chance == pytest.approx((1 / 4 + 1 / 3) / 2)


@pytest.mark.parametrize("sizes", [{"repeated": 16}, {"symbols": 15}, {"length": 8}])
def test_a_stretch_that_does_not_fit_is_refused_of_induction(sizes):
    with pytest.raises(ConfigError, match="so give repeated < length <= symbols"):
        load("induction", **sizes)


# mqar


@pytest.mark.parametrize("sizes", [{}, {"pairs": 3, "keys": 9, "values": 12}])
def test_every_answer_is_the_value_that_stood_behind_the_key(sizes):
    options = {"pairs": 8, "keys": 16, "values": 16, **sizes}
    pairs, keys, values = options.values()
    task = load("mqar", rows=50, **sizes)
    assert task.num_classes == keys + values
    assert task.chance == 1 / pairs
    orders = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        assert len(row) == 3 * pairs
        from_row, theirs, labelled = (
            row[0 : 2 * pairs : 2],
            row[1 : 2 * pairs : 2],
            row[2 * pairs :],
        )
        assert len(set(from_row)) == len(set(theirs)) == pairs
        assert set(from_row) <= set(range(keys))
        assert set(theirs) <= set(range(keys, keys + values))
        assert sorted(labelled) == sorted(from_row)
        assert labels[: 2 * pairs] == [IGNORE_INDEX] * (2 * pairs)
        table = dict(zip(from_row, theirs, strict=True))
        assert labels[2 * pairs :] == [table[key] for key in labelled]
        orders.add(tuple(from_row.index(key) for key in labelled))
    assert len(orders) > 5


def test_every_key_and_value_is_used_about_as_often():
    task = load("mqar")
    counts = task.train.inputs[:, :16].flatten().bincount(minlength=32)
    assert counts.min() > 0.93 * 8_192 * 8 / 16
    assert counts.max() < 1.07 * 8_192 * 8 / 16


@pytest.mark.parametrize("sizes", [{"keys": 7}, {"values": 7}, {"pairs": 17}])
def test_fewer_keys_or_values_than_pairs_are_refused(sizes):
    with pytest.raises(ConfigError, match="at least `pairs` keys"):
        load("mqar", **sizes)


# passkey


def numbers(words, digits):
    """The numbers of a row behind each kind of mark."""
    result = {"<passkey>": [], "<number>": []}
    for place, word in enumerate(words):
        if word in result:
            result[word].append("".join(words[place + 1 : place + 1 + digits]))
    return result


@pytest.mark.parametrize(
    "sizes", [{}, {"length": 40, "digits": 5, "decoys": 0}, {"length": 15, "digits": 3}]
)
def test_every_answer_is_the_next_digit_of_the_marked_number(sizes):
    length, digits, decoys = {"length": 64, "digits": 3, "decoys": 3, **sizes}.values()
    if length == 15:
        decoys = 2  # 3 numbers with their marks fill the row to the last token
    task = load("passkey", rows=300, length=length, digits=digits, decoys=decoys)
    places = set()
    for row, labels in zip(task.train.inputs.tolist(), task.train.labels.tolist(), strict=True):
        words = [task.vocabulary[token] for token in row]
        body, question = words[: length - digits], words[length - digits :]
        result = numbers(body, digits)
        (key,) = result["<passkey>"]
        assert len(result["<number>"]) == decoys
        assert all(len(number) == digits and number.isdigit() for number in result["<number>"])
        assert sum(word.isdigit() for word in body) == digits * (decoys + 1)
        assert question == ["<ask>", *key[:-1]]
        assert labels[: length - digits] == [IGNORE_INDEX] * (length - digits)
        assert labels[length - digits :] == [int(digit) for digit in key]
        places.add(body.index("<passkey>"))
    assert task.chance == 0.1
    assert task.num_classes == len(task.vocabulary) == 21
    assert len(places) == (3 if length == 15 else length - 2 * digits)


def test_no_number_of_a_part_is_in_another():
    task = load("passkey")
    result = []
    for split in (task.train, task.validation, task.test):
        mine = set()
        for row in split.inputs[:, :61].tolist():
            words = [task.vocabulary[token] for token in row]
            mine.update(*numbers(words, 3).values())
        result.append(mine)
    assert [len(mine) for mine in result] == [800, 100, 100]
    assert len(set.union(*result)) == 1_000


def test_sizes_that_do_not_fit_are_refused():
    message = "passkey: numbers and question need 19 tokens and length is 18; give a larger length"
    with pytest.raises(ConfigError, match=message):
        load("passkey", length=18)
    assert load("passkey", length=19, rows=5).train.inputs.shape == (5, 19)


def test_numbers_of_too_many_digits_are_refused():
    with pytest.raises(ConfigError, match="passkey: digits=7"):
        load("passkey", digits=7)
    with pytest.raises(ConfigError, match="passkey: digits=0"):
        load("passkey", digits=0)
    with pytest.raises(ConfigError, match="passkey: decoys=-1"):
        load("passkey", decoys=-1)


# two hop


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
        few = [facts[key] for key in first] if part == "train" else [IGNORE_INDEX] * 2 * chains
        assert labels == [IGNORE_INDEX] * 4 * chains + few + ends
        orders.add(tuple(starts.index(key) for key in second))
    assert len(orders) > 1


def test_more_chains_than_symbols_are_refused():
    with pytest.raises(ConfigError, match="at least `chains` symbols"):
        load("two_hop", chains=7)
