"""`suffice evaluate --task recall`: a trained model's recall, with controls that must fail."""

from __future__ import annotations

import json

import pytest
import torch

from suffice import preset
from suffice.comparison import evaluation
from suffice.models import LMConfig, folder
from suffice.text import Characters

LETTERS = "abcdefghijklmnopqrstuvwxyz. "


@pytest.fixture
def run(tmp_path):
    torch.manual_seed(0)
    config = LMConfig(length=64, d_model=16, depth=2, mlp_width=16, vocabulary_size=28)
    window = preset("sliding_window", 16, 2, window=4, causal=True)
    folder.save(tmp_path / "run", config.build(window).eval(), Characters(LETTERS))


@pytest.mark.usefixtures("run")
def test_recall_is_printed_with_its_controls_and_as_json(suffice):
    shown = suffice("evaluate", "run", "--task", "recall", "--limit", 5, "--quiet")
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "recall, 5 rows each; the model can attend to 6 tokens back"
    assert any(line.startswith("a stretch again, shuffled 15 ") for line in lines)
    told = suffice("evaluate", "run", "--task", "recall", "--limit", 5, "--quiet", "--json")
    data = json.loads(told.stdout)
    assert (data["reach"], data["rows"], data["alarms"]) == (6, 5, 0)
    assert len(data["recalls"]) == len(lines) - 2


@pytest.mark.usefixtures("run")
def test_a_control_that_succeeds_is_an_alarm(suffice, monkeypatch):
    monkeypatch.setattr(evaluation, "TOLERANCE", -1.0)
    done = suffice("evaluate", "run", "--task", "recall", "--limit", 2, "--quiet")
    assert done.exit_code == 1
    assert "controls succeeded" in done.message


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("words", [("--data", "x.txt"), ("--limit", 0)])
def test_what_says_nothing_of_recall_is_refused(suffice, words):
    done = suffice("evaluate", "run", "--task", "recall", *words, "--quiet")
    assert done.exit_code == 2
