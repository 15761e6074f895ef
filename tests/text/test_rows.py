from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from suffice.errors import ConfigError, DataError
from suffice.layers.positions import positions
from suffice.recipes import recipe
from suffice.text import pack, text

# packing


def unpacked(tokens: torch.Tensor, segments: torch.Tensor) -> list[tuple[int, ...]]:
    """Return the runs of equal segments, padding left out."""
    result = []
    for row, numbers in zip(tokens.tolist(), segments.tolist(), strict=True):
        for number in range(1, max(numbers) + 1):
            result.append(tuple(t for t, n in zip(row, numbers, strict=True) if n == number))
    return result


def documents(seed: int, longest: int, count: int = 200) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(1, 99) for _ in range(draw.randrange(longest + 1))] for _ in range(count)
    ]


@pytest.mark.parametrize("length", [1, 2, 7, 32])
@pytest.mark.parametrize("longest", [1, 7, 100])
def test_no_token_is_lost(length: int, longest: int):
    packed_documents = documents(length, longest)
    pieces = [
        tuple(document[at : at + length])
        for document in packed_documents
        for at in range(0, len(document), length)
    ]
    tokens, segments = pack(packed_documents, length)
    assert tokens.shape == segments.shape
    assert tokens.shape[1] == length
    assert tokens.dtype == segments.dtype == torch.int64
    assert sorted(unpacked(tokens, segments)) == sorted(pieces)


def test_padding_is_last_with_token_and_segment_0():
    tokens, segments = pack(documents(0, 9), 16)
    valid = segments > 0
    assert not tokens[~valid].any()
    assert not (valid[:, 1:] & ~valid[:, :-1]).any()
    rises = segments[:, 1:] - segments[:, :-1]
    assert set(rises[valid[:, 1:]].tolist()) == {0, 1}
    assert set(segments[:, 0].tolist()) == {1}


def test_each_piece_goes_where_the_least_room_holds_it():
    packed_documents = [[1] * size for size in (5, 4, 3, 1, 2, 6)]
    _, segments = pack(packed_documents, 8)
    assert [row.bincount()[1:].tolist() for row in segments] == [[6, 2], [5, 3], [4, 1]]


def test_the_order_of_equals_is_kept():
    tokens, _ = pack([[1, 1], [2, 2], [3, 3]], 4)
    assert tokens.tolist() == [[1, 1, 2, 2], [3, 3, 0, 0]]


def test_positions_restart_with_each_document():
    _, segments = pack([[5, 5, 5], [6, 6]], 6)
    assert positions(segments > 0, segments).tolist() == [[0, 1, 2, 0, 1, 0]]


def test_documents_may_be_arrays():
    packed_documents = [[1, 2, 3], [4]]
    for form in (np.array, torch.tensor, tuple):
        got = pack((form(document) for document in packed_documents), 4)
        assert torch.equal(got[0], pack(packed_documents, 4)[0])


@pytest.mark.parametrize("length", [0, 2.0, True])
def test_a_length_that_cannot_be_is_refused(length: object):
    with pytest.raises(ConfigError, match="length="):
        pack([[1]], length)


@pytest.mark.parametrize("wrong", ["text", [[1], [2]], [0.5], 7])
def test_what_is_no_sequence_of_ids_is_refused(wrong: object):
    with pytest.raises(ConfigError, match="which is not a sequence of token ids"):
        pack([[1], wrong], 4)


@pytest.mark.parametrize("empty", [[], [[]], [[], []]])
def test_documents_without_a_token_are_refused(empty: list):
    with pytest.raises(DataError, match="there is no token to pack"):
        pack(empty, 4)


# task


@pytest.fixture
def plays(tmp_path: Path) -> str:
    """One text of 1,000 characters: the digits over and over."""
    path = tmp_path / "plays.txt"
    path.write_text("0123456789" * 100)
    return str(path)


def test_labels_are_the_next_tokens(plays: str):
    data = text(corpus=plays, length=16)
    for split in (data.train, data.validation, data.test):
        assert split.inputs.shape == split.labels.shape
        assert split.inputs.shape[1] == 16
        assert torch.equal(split.labels, (split.inputs + 1) % 10)
    assert (data.num_classes, data.scores) == (10, ("perplexity",))
    # 900 characters of training are 56 rows and their next, of which a tenth is held out
    assert (len(data.train), len(data.validation), len(data.test)) == (51, 5, 6)


def test_rows_follow_each_other_and_the_last_are_for_validation(plays: str):
    data = text(corpus=plays, length=16)
    rows = torch.cat([data.train.inputs, data.validation.inputs])
    assert rows.flatten().tolist() == [i % 10 for i in range(56 * 16)]


def test_kept_rows_are_drawn(plays: str):
    few, full = text(corpus=plays, length=7, rows=20), text(corpus=plays, length=7)
    assert len(few.train) == 20
    assert len(few.validation) == len(full.validation)
    drawn = [row.tolist() for row in few.train.inputs]
    assert drawn != full.train.inputs[:20].tolist()
    assert all(row in full.train.inputs.tolist() for row in drawn)


def test_options_that_are_not_legal_are_refused(plays: str):
    with pytest.raises(ConfigError, match="text: length=0, rows=0"):
        text(corpus=plays, length=0, rows=0)
    with pytest.raises(ConfigError, match="'characters'"):
        text(corpus=plays, vocabulary_size=9)


def test_corpora_that_are_too_short_are_refused(plays: str):
    with pytest.raises(DataError, match="900 tokens"):
        text(corpus=plays, length=950)
    with pytest.raises(DataError, match="9 training.*99 tokens"):
        text(corpus=plays, length=99)


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_recipe_fits_the_plays(scale: str):
    sentence = recipe("lm_small", scale=scale)
    options = dict(sentence.task_options)
    assert options["length"] == sentence.model.length
    assert sentence.model.vocabulary_size == 65, "characters of the plays"
    assert sentence.specs("super_attention", 4)[0].pattern.causal
