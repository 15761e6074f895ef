"""The text that `suffice train` ends with."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from suffice import preset
from suffice.cli.train import sample_or_reason
from suffice.errors import ConfigError
from suffice.generate import generate
from suffice.generate.generate import sample_text
from suffice.models import LMConfig
from suffice.models import folder as models
from suffice.text import Characters
from suffice.train.language import Amount


def model(**changes):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 12, "length": 8, "d_model": 16, "depth": 1, "mlp_width": 16}
    return LMConfig(**sizes | changes).build(preset("standard", 16, 2, causal=True)).eval()


def test_a_sample_is_as_long_as_is_wanted_and_the_same_again():
    letters = Characters("abcdefghij\nk")
    told = sample_text(model(), letters, tokens=50)
    assert len(told) == 50
    assert told == sample_text(model(), letters, tokens=50)
    assert told != sample_text(model(), letters, tokens=50, seed=1)
    assert len(sample_text(model(length=1), letters, tokens=3)) == 3


@pytest.mark.parametrize(
    ("begin", "end", "first"), [(5, 7, [5]), (None, 7, [7]), (None, None, [10])]
)
def test_a_sample_begins_as_a_document_does_and_hides_its_ends(monkeypatch, begin, end, first):
    letters, starts = Characters("abcdefghij\nk"), []
    monkeypatch.setattr(Characters, "begin", begin)
    monkeypatch.setattr(Characters, "end", end)

    def watched(lm, tokens, **options):
        starts.append(tokens[0])
        assert options["max_new_tokens"] + len(tokens[0]) <= 9
        return generate(lm, tokens, **options)

    monkeypatch.setattr(import_module("suffice.generate.generate"), "generate", watched)
    told = sample_text(model(), letters, tokens=60)
    assert starts[0] == first
    assert [len(one) for one in starts[1:-1]] == [4] * len(starts[1:-1])
    assert not {letters.characters[one] for one in (begin, end) if one is not None} & set(told)
    assert 30 <= len(told) <= 60


def test_rows_without_a_token_are_left_out():
    told = sample_text(model(), Characters("abc"), tokens=60)
    assert 0 < len(told) < 60
    assert set(told) == set("abc")


def test_a_model_that_cannot_generate_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("it cannot stream; train another.")

    models.save(tmp_path, model(), Characters("abcdefghij\nk"))
    monkeypatch.setattr(import_module("suffice.generate.generate"), "generate", refuse)
    lm, tokenizer, _ = models.load(tmp_path)
    said = sample_or_reason(lm, tokenizer, Amount(characters=2, tokens=1, bytes=2))
    assert said == "no sample of its text: it cannot stream; train another."
