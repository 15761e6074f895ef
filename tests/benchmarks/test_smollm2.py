"""The table of SmolLM2 is made once, row by row, and the page shows what was kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import smollm2
from suffice import AttentionSpec
from suffice.models import LMConfig, folder
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import drawn
from suffice.text import Characters, Corpus

PAGE = Path(__file__).parents[2] / "docs" / "smollm2.md"
TEXT = "to be or not to be, that is the question; whether it is nobler in the mind. "


@pytest.fixture
def small(tmp_path, monkeypatch):
    tokenizer = Characters.of([TEXT])
    heads = {"num_heads": 6, "num_kv_heads": 3, "pattern": Causal(), "position": Rope()}
    spec = AttentionSpec(d_model=48, bias=False, **heads)
    sizes = {"length": 600, "d_model": 48, "depth": 2, "mlp_width": 32, "positions": "none"}
    config = LMConfig(**sizes, vocabulary_size=tokenizer.vocabulary_size, bias=False)
    folder.save(tmp_path / "m", drawn(config.build(spec), seed=1), tokenizer)
    texts = [TEXT[n:] * 9 for n in range(5)]
    made = Corpus.of("x", "", [TEXT], [*texts, TEXT], [TEXT * 40])
    monkeypatch.setattr(smollm2, "corpus", lambda _: made)
    monkeypatch.setattr(smollm2.models, "path", lambda _: tmp_path / "m")
    monkeypatch.setattr(smollm2, "FILE", tmp_path / "kept.json")
    settings = {"TEXTS": 4, "LENGTH": 500, "CALIBRATION": 2048, "BEHIND": 70, "ROUNDS": 1}
    for name, value in (settings | {"HALF": 1}).items():
        monkeypatch.setattr(smollm2, name, value)
    return tmp_path


def test_the_page_shows_what_was_kept():
    page, folder = PAGE.read_text(), smollm2.FILE.parent
    names = ("smollm2", "smollm2_tasks", "smollm2_llama_cpp")
    rows, tasks, beside = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    for lines in (
        smollm2.lines(rows["rows"]),
        smollm2.task_lines(tasks["rows"]),
        smollm2.beside_lines(beside),
    ):
        assert "\n".join(lines) in page
