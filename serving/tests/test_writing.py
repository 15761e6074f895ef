"""Pieces of text: several stop texts, and what is held back before them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from suffice.text import Characters
from suffice_serve.engine import scores
from suffice_serve.job import TokenScore
from suffice_serve.writing import Entry, Spelling, Writer


class Several:
    """A token for every text of up to so many letters."""

    begin, special = None, {}

    def __init__(self, letters):
        self.letters = letters
        sizes = range(1, letters + 1)
        self.names = ["".join(name) for n in sizes for name in product("abc", repeat=n)]
        self.vocabulary_size = len(self.names)

    def encode(self, text):
        places = range(0, len(text), self.letters)
        return [self.names.index(text[at : at + self.letters]) for at in places]

    def decode(self, ids):
        return "".join(self.names[id_] for id_ in ids)


TEXTS = ["".join(letters) for letters in product("ab", repeat=6)]
STOPS = [(), ("ab",), ("bb", "aab"), ("aab", "b"), ("b", "a"), ("abab", "ba", "bb"), ("a", "aa")]


def pieces(text, stop, letters=1, **options):
    """Write a text token by token; return the pieces after each, and those of the end."""
    told, tokenizer = [], Several(letters)
    writer = Writer(
        Spelling(tokenizer), tokenizer.encode("c"), stop=stop, deliver=told.append, **options
    )
    steps = []
    for id_ in tokenizer.encode(text):
        goes_on = writer.token(TokenScore(id_, -0.5, ((id_, -0.5), (0, -9.0))))
        steps.append([*told])
        told.clear()
        if not goes_on:
            break
    writer.finish("length" if goes_on else "stop")
    return steps, told


def ended(text, stop, letters):
    """Where a text ends by definition: before the first stop text there is, and after what."""
    for read in range(letters, len(text) + 1, letters):
        ends = [at for at in (text[:read].find(one) for one in stop) if at >= 0]
        if ends:
            return min(ends), read
    return len(text), len(text)


@pytest.mark.parametrize("letters", [1, 2, 3])
@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_text_ends_before_the_first_of_its_stop_texts(stop, letters):
    for text in TEXTS:
        end, read = ended(text, stop, letters)
        steps, last = pieces(text, stop, letters)
        assert len(steps) == read // letters
        told = [piece for step in (*steps, last) for piece in step]
        assert "".join(piece.text for piece in told) == text[:end]
        assert [piece.reason for piece in told if piece.reason] == [
            "stop" if any(one in text for one in stop) else "length"
        ]
        assert sum(piece.tokens for piece in told) == read // letters


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_no_more_is_held_back_than_may_become_a_stop_text(stop):
    for text in TEXTS:
        _, read = ended(text, stop, 1)
        sent = ""
        for n, step in enumerate(pieces(text, stop)[0][: read - 1], start=1):
            sent += "".join(piece.text for piece in step)
            beginnings = {one[:k] for one in stop for k in range(1, len(one))}
            held = max((k for k in range(n + 1) if text[n - k : n] in beginnings), default=0)
            assert sent == text[: n - held]


def test_scores_come_with_their_text():
    steps, last = pieces("abba", ("bb", "x"), scored=True, offset=10)
    entries = [entry for step in (*steps, last) for piece in step for entry in piece.entries]
    assert entries == [Entry("a", -0.5, {"a": -0.5}, 10)]
    (first, second), last = pieces("ab", ("bb",), scored=True)
    assert [len(piece.entries) for piece in first] == [1]
    assert second == []
    assert [(piece.text, piece.entries[0].offset) for piece in last] == [("b", 1)]
    assert last[0].entries[0].top == {"b": -0.5, "a": -9.0}


class Bytes:
    """A token for each byte of UTF-8, and one that begins a text."""

    begin, vocabulary_size, special = 256, 257, {"<s>": 256}

    def decode(self, ids):
        names = [b"<s>" if id_ == self.begin else bytes([id_]) for id_ in ids]
        return b"".join(names).decode(errors="replace")


@pytest.mark.parametrize("in_text", [False, True])
@pytest.mark.parametrize("at_once", [1, 5])
def test_offsets_of_a_prompt_count_the_characters_of_its_text(in_text, at_once):
    told, ids = [], [256, *"zürich 東京 x".encode()]
    shift = len("<s>") * in_text
    where = {"offset": shift + 11, "unspelled": 1 - in_text}
    writer = Writer(Spelling(Bytes()), ids, deliver=told.append, **where)
    for k in range(1, len(ids), at_once):
        writer.prompt([TokenScore(id_, -1.0, ()) for id_ in ids[k : k + at_once]])
    entries = [entry for piece in told for entry in piece.entries]
    assert [entry.logprob for entry in entries] == [None] + [-1.0] * 16
    #      z ü....  r  i  c  h  _  東.....  京.....  _  x
    want = [0, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 8, 8, 8, 9, 10]
    assert [entry.offset for entry in entries] == [0, *(shift + offset for offset in want)]


@pytest.mark.parametrize("alternatives", [0, 1, 3, 9])
def test_scores_are_the_log_probabilities_of_each_row(alternatives):
    logits = torch.randn(4, 5)
    got = scores(logits, [3, 0, 4, 4], alternatives)
    for row, (token, score) in enumerate(zip([3, 0, 4, 4], got, strict=True)):
        logs = logits[row].log_softmax(0).tolist()
        likeliest = sorted(range(5), key=lambda n: -logs[n])[:alternatives]
        assert score.token == token
        assert score.logprob == pytest.approx(logs[token])
        assert [n for n, _ in score.top] == likeliest
        assert [p for _, p in score.top] == pytest.approx([logs[n] for n in likeliest])


class Lstripped(Characters):
    """Loses the space before a text, as SentencePiece does."""

    def decode(self, ids):
        return super().decode(ids).removeprefix(" ")


def test_a_space_before_a_token_is_spelled():
    assert Spelling(Lstripped("!a "))[2] == " "
