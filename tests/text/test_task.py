from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from suffice.data import load
from suffice.errors import ConfigError, DataError
from suffice.recipes import recipe
from suffice.text import text


@pytest.fixture
def plays(tmp_path: Path) -> str:
    """One text of 1,000 characters: the digits over and over."""
    path = tmp_path / "plays.txt"
    path.write_text("0123456789" * 100)
    return str(path)


def test_every_next_token_is_asked(plays: str):
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
    few, whole = text(corpus=plays, length=7, rows=20), text(corpus=plays, length=7)
    assert len(few.train) == 20
    assert len(few.validation) == len(whole.validation)
    kept = [row.tolist() for row in few.train.inputs]
    assert kept != whole.train.inputs[:20].tolist()
    assert all(row in whole.train.inputs.tolist() for row in kept)


def test_documents_are_joined_by_the_tokenizers_end(tmp_path: Path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "documents.jsonl"
    texts = [f"document {i} of some words" for i in range(200)]
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    data = text(corpus=str(path), tokenizer="bpe", vocabulary_size=280, length=8)
    assert data.num_classes == 280
    joined = data.train.inputs.flatten().tolist()
    ends = joined.count(max(joined, key=joined.count))
    assert ends >= 10


def test_the_task_is_known_by_name(plays: str):
    data = load("text", corpus=plays, length=16)
    assert data.name == "text"
    assert torch.equal(data.test.inputs, text(corpus=plays, length=16).test.inputs)


def test_options_that_are_not_legal_are_refused(plays: str):
    with pytest.raises(ConfigError, match="text: length=0, rows=0; give whole numbers"):
        text(corpus=plays, length=0, rows=0)
    with pytest.raises(ConfigError, match="tokenizer 'characters' with vocabulary_size=9"):
        text(corpus=plays, vocabulary_size=9)


def test_corpora_that_are_too_short_are_refused(plays: str):
    with pytest.raises(DataError, match=r"text: a part of .* has 900 tokens, too few for a row"):
        text(corpus=plays, length=950)
    with pytest.raises(DataError, match=r"has 9 training rows of 99 tokens, of which a tenth is"):
        text(corpus=plays, length=99)


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_the_recipe_fits_the_plays(scale: str):
    one = recipe("lm_small", scale=scale)
    options = dict(one.task_options)
    assert options["length"] == one.model.length
    assert one.model.vocabulary_size == 65, "characters of the plays"
    assert one.specs("super_attention", 4)[0].pattern.causal
