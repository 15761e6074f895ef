"""The three texts of a healing."""

from __future__ import annotations

import pytest
import torch

from suffice.convert.heal import Texts
from suffice.convert.heal.text import halves, split_corpus
from suffice.errors import DataError
from suffice.text import Characters, Corpus, Documents

LETTERS = Characters("abc")


def documents(*texts, name="d"):
    return Documents(name=name, read=lambda: texts)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["abcd", "ef", "g"], (["abcd"], ["ef", "g"])),
        (["a", "bcdefgh"], (["a"], ["bcdefgh"])),
        (["abcdefgh", "i"], (["abcdefgh"], ["i"])),
        (["a", "b", "c", "d"], (["a", "b"], ["c", "d"])),
        (["abcde"], (["ab"], ["cde"])),
    ],
)
def test_halves_are_whole_documents(texts, wanted):
    first, second = halves(documents(*texts))
    for _ in range(2):  # each pass reads anew
        assert (list(first), list(second)) == wanted
    assert (first.name, second.name) == ("d, first half", "d, second half")


def test_a_test_part_is_reported_on():
    parts = {name: documents(name) for name in ("train", "validation", "test")}
    whole = Corpus(name="c", source="", **parts)
    assert split_corpus(whole) == tuple(parts.values())
    two = Corpus(name="c", source="", train=parts["train"], validation=documents("abcd"))
    assert [list(part) for part in split_corpus(two)] == [["train"], ["ab"], ["cd"]]


def test_tokens_are_written_once_and_rows_are_spread(tmp_path, monkeypatch):
    found = Texts.write(tmp_path / "t", (["abc" * 20], ["b" * 30], ["abc" * 17]), LETTERS)
    assert list(map(len, (found.train, found.validation, found.held_out))) == [60, 30, 51]
    again = Texts.write(tmp_path / "t", ((), (), ()), LETTERS)
    assert torch.equal(again.rows(10), found.rows(10))
    assert found.rows(10).shape == (5, 11)
    assert torch.equal(found.rows(10)[1:, 0], found.rows(10)[:-1, -1])
    monkeypatch.setattr("suffice.convert.heal.text.HELD_OUT_TOKENS", 20)
    assert torch.equal(found.rows(10), found.held_out.take(torch.tensor([0, 20]), 10))
    found.check(batch_size=2, length=14)
    with pytest.raises(DataError, match="30 tokens"):
        found.check(batch_size=2, length=15)
    with pytest.raises(DataError, match="51 tokens"):
        Texts(train=found.train, validation=found.train, held_out=found.held_out).check(
            batch_size=5, length=11
        )
