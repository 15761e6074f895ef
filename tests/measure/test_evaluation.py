"""Perplexity against losses of each window alone."""

from __future__ import annotations

import math
import statistics
import sys

import pytest
import torch
import torch.nn.functional as F

from suffice.errors import ConfigError
from suffice.measure.evaluation import perplexity
from suffice.models import configuration
from suffice.text import Characters, Corpus, Documents

TOKENIZER = Characters("\n :.?APQT[]abcdefghinorstuwxyz")


@pytest.fixture(scope="module")
def lm():
    torch.manual_seed(0)
    config, specs = configuration(
        "nanogpt_char_cpu", vocabulary_size=TOKENIZER.vocabulary_size, length=32
    )
    model = config.build(specs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4.0
    return model


def test_perplexity_reads_every_token_once(lm, tmp_path):
    path = tmp_path / "text.txt"
    text = "the cat is on the rat. " * 40
    path.write_text(text)
    found = perplexity(lm, TOKENIZER, data=str(path))
    scores = {score.name: score for score in found.scores}
    ids = TOKENIZER.encode(text[: int(len(text) * 0.9)]) + TOKENIZER.encode(
        text[int(len(text) * 0.9) :]
    )
    windows = [ids[n : n + 33] for n in range(0, len(ids) - 1, 32)]
    sums = []
    for row in windows:
        with torch.no_grad():
            logits = lm(torch.tensor([row[:-1]]))[0]
        sums.append(float(F.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")))
    wanted = sum(sums) / (len(ids) - 1)
    assert found.items == found.of == len(windows)
    assert scores["loss"].value == pytest.approx(wanted, rel=1e-5)
    means = [s / (len(row) - 1) for s, row in zip(sums, windows, strict=True)]
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert scores["loss"].standard_error == pytest.approx(error, rel=1e-4)
    assert scores["perplexity"].value == pytest.approx(math.exp(wanted), rel=1e-5)
    assert scores["bits_per_byte"].value == pytest.approx(wanted / math.log(2), rel=1e-5)
    few = perplexity(lm, TOKENIZER, data=str(path), limit=18)
    assert (few.items, few.of) == (18, len(windows))
    assert few.scores[0].value == pytest.approx(sum(sums[:18]) / (18 * 32), rel=1e-5)
    assert perplexity(lm, TOKENIZER, data=str(path), limit=16).items == 16
    assert perplexity(lm, TOKENIZER, data=str(path), limit=1).scores[0].standard_error is None
    with pytest.raises(ConfigError, match="limit=0"):
        perplexity(lm, TOKENIZER, data=str(path), limit=0)


def test_a_named_corpus_gives_its_test_or_validation_part(lm, monkeypatch):
    def made(name, **parts):
        read = {n: Documents(name=n, read=lambda t=t: [t]) for n, t in parts.items()}
        return Corpus(name=name, source="made up", **read)

    module = sys.modules["suffice.measure.evaluation"]
    parts = {"train": "a" * 99, "validation": "b" * 66, "test": "c" * 34}
    monkeypatch.setattr(module, "corpus", lambda _: made("wikitext2", **parts))
    assert perplexity(lm, TOKENIZER, data="wikitext2").of == 2
    del parts["test"]
    monkeypatch.setattr(module, "corpus", lambda _: made("stdlib", **parts))
    assert perplexity(lm, TOKENIZER, data="stdlib").of == 3
