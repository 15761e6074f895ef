from __future__ import annotations

import pytest

from suffice.data import IGNORE_INDEX, load
from suffice.errors import ConfigError


def numbers(words, digits):
    """The numbers of a row behind each kind of mark."""
    found = {"<passkey>": [], "<number>": []}
    for place, word in enumerate(words):
        if word in found:
            found[word].append("".join(words[place + 1 : place + 1 + digits]))
    return found


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
        found = numbers(body, digits)
        (key,) = found["<passkey>"]
        assert len(found["<number>"]) == decoys
        assert all(len(number) == digits and number.isdigit() for number in found["<number>"])
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
    found = []
    for split in (task.train, task.validation, task.test):
        mine = set()
        for row in split.inputs[:, :61].tolist():
            words = [task.vocabulary[token] for token in row]
            mine.update(*numbers(words, 3).values())
        found.append(mine)
    assert [len(mine) for mine in found] == [800, 100, 100]
    assert len(set.union(*found)) == 1_000


def test_sizes_that_do_not_fit_are_refused():
    told = "passkey: numbers and question need 19 tokens and length is 18; give a larger length"
    with pytest.raises(ConfigError, match=told):
        load("passkey", length=18)
    assert load("passkey", length=19, rows=5).train.inputs.shape == (5, 19)


def test_numbers_of_too_many_digits_are_refused():
    with pytest.raises(ConfigError, match="passkey: digits=7; give at most 6"):
        load("passkey", digits=7)
    with pytest.raises(ConfigError, match="passkey: digits=0; give whole numbers of at least 1"):
        load("passkey", digits=0)
    with pytest.raises(ConfigError, match="passkey: decoys=-1; give whole numbers of at least 0"):
        load("passkey", decoys=-1)
