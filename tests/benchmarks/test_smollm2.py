"""The table of SmolLM2 is made once, row by row, and the page shows what was kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import smollm2
from suffice import AttentionSpec
from suffice.memory import Dynamic
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


def test_rows_are_measured_once_and_printed(small, monkeypatch, capsys):
    names = ["as it was", "window:256+sinks:4", "window:256+sinks:4 in 1 layers", "mla:192"]
    monkeypatch.setitem(smollm2.CASES, names[2], smollm2._half("window:256+sinks:4"))
    words = ["--only", *names, "--figure", str(small / "figure.svg")]
    assert smollm2.main(words) == 0
    rows = json.loads((small / "kept.json").read_text())["rows"]
    before, both, one, refused = (rows[name] for name in names)
    losses = torch.tensor([row["losses"] for row in (before, both, one)])
    assert losses.shape == (3, 4)
    assert len({tuple(row) for row in losses.tolist()}) == 3
    assert "R up to 48" in refused["refused"]
    assert before["state"] == 2 * 2 * 70 * 24 * 4
    difference = (losses[1] - losses[0]).double()
    spread = 3.182446 * difference.std() / 2  # t of 3 degrees of freedom, 4 texts
    mean = difference.mean()
    changed = f"{mean:+.3f} [{mean - spread:+.3f}, {mean + spread:+.3f}]"
    assert f"| window:256+sinks:4 | {losses[1].mean():.3f} | {changed} |" in capsys.readouterr().out
    assert "<svg" in (small / "figure.svg").read_text()
    monkeypatch.setattr(smollm2, "Subject", None)
    assert smollm2.main(words) == 0


def test_a_cache_that_rounds_nothing_changes_nothing(small):
    subject = smollm2.Subject(small / "m")
    whole, streamed = (subject.losses(subject.lm, memory) for memory in (None, Dynamic()))
    assert streamed == pytest.approx(whole, rel=1e-5)


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
