from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from suffice.errors import ConfigError, DataError
from suffice.layers.place import positions
from suffice.text import pack


def unpacked(tokens: torch.Tensor, segments: torch.Tensor) -> list[tuple[int, ...]]:
    """Return the runs of equal segments, padding left out."""
    found = []
    for row, numbers in zip(tokens.tolist(), segments.tolist(), strict=True):
        for number in range(1, max(numbers) + 1):
            found.append(tuple(t for t, n in zip(row, numbers, strict=True) if n == number))
    return found


def documents(seed: int, longest: int, count: int = 200) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(1, 99) for _ in range(draw.randrange(longest + 1))] for _ in range(count)
    ]


@pytest.mark.parametrize("length", [1, 2, 7, 32])
@pytest.mark.parametrize("longest", [1, 7, 100])
def test_no_token_is_lost(length: int, longest: int):
    given = documents(length, longest)
    pieces = [
        tuple(document[at : at + length])
        for document in given
        for at in range(0, len(document), length)
    ]
    tokens, segments = pack(given, length)
    assert tokens.shape == segments.shape
    assert tokens.shape[1] == length
    assert tokens.dtype == segments.dtype == torch.int64
    assert sorted(unpacked(tokens, segments)) == sorted(pieces)


def test_padding_stands_last_with_token_and_segment_0():
    tokens, segments = pack(documents(0, 9), 16)
    valid = segments > 0
    assert not tokens[~valid].any()
    assert not (valid[:, 1:] & ~valid[:, :-1]).any()
    rises = segments[:, 1:] - segments[:, :-1]
    assert set(rises[valid[:, 1:]].tolist()) == {0, 1}
    assert set(segments[:, 0].tolist()) == {1}


def test_each_piece_goes_where_the_least_room_holds_it():
    given = [[1] * size for size in (5, 4, 3, 1, 2, 6)]
    _, segments = pack(given, 8)
    assert [row.bincount()[1:].tolist() for row in segments] == [[6, 2], [5, 3], [4, 1]]


def test_the_order_of_equals_is_kept():
    tokens, _ = pack([[1, 1], [2, 2], [3, 3]], 4)
    assert tokens.tolist() == [[1, 1, 2, 2], [3, 3, 0, 0]]


def test_rows_are_few():
    """Best fit, longest first, needs at most 11/9 of the fewest rows, and one more."""
    for seed in range(20):
        given = documents(seed, 20)
        tokens, _ = pack(given, 24)
        fewest = -(-sum(map(len, given)) // 24)
        assert len(tokens) <= 11 / 9 * fewest + 1


def test_positions_restart_with_each_document():
    _, segments = pack([[5, 5, 5], [6, 6]], 6)
    assert positions(segments > 0, segments).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_documents_may_be_arrays():
    given = [[1, 2, 3], [4]]
    for form in (np.array, torch.tensor, tuple):
        got = pack((form(document) for document in given), 4)
        assert torch.equal(got[0], pack(given, 4)[0])


@pytest.mark.parametrize("length", [0, 2.0, True])
def test_a_length_that_cannot_be_is_refused(length: object):
    with pytest.raises(ConfigError, match=r"length=.* is not legal; give an integer >= 1"):
        pack([[1]], length)


@pytest.mark.parametrize("wrong", ["text", [[1], [2]], [0.5], 7])
def test_what_is_no_sequence_of_ids_is_refused(wrong: object):
    with pytest.raises(ConfigError, match="which is no sequence of token ids; encode it first"):
        pack([[1], wrong], 4)


@pytest.mark.parametrize("empty", [[], [[]], [[], []]])
def test_no_token_is_told(empty: list):
    with pytest.raises(DataError, match="there is no token to pack; give documents that hold some"):
        pack(empty, 4)
