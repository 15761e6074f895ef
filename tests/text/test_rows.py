from __future__ import annotations

from pathlib import Path

import pytest
import torch

from suffice.errors import ConfigError, DataError
from suffice.text import text
from suffice.train.recipes import recipe


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
