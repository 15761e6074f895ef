"""The comparison of windows with linear conversions runs, and goes on where it stopped."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import windows
from suffice import AttentionSpec
from suffice.models import LMConfig, folder
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import drawn
from suffice.text import Characters

TEXT = "to be or not to be, that is the question; whether it is nobler in the mind. " * 90


@pytest.fixture
def run(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    tokenizer = Characters.of([TEXT])
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope(), bias=False)
    sizes = {"length": 16, "d_model": 16, "depth": 1, "mlp_width": 16, "positions": "none"}
    config = LMConfig(**sizes, vocabulary_size=tokenizer.vocabulary_size, bias=False)
    lm = drawn(config.build(spec), seed=1)
    folder.save(tmp_path / "run", lm, tokenizer, corpus=str(tmp_path / "text.txt"))
    return tmp_path / "run"


def test_results_are_made_once_and_drawn(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(windows, "NEW", 4)
    words = [str(run), "--work", str(tmp_path), "--steps", "4", "--targets", "window:4", "linear"]
    assert windows.main([*words, "--figure", str(tmp_path / "figure.svg")]) == 0
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.rglob("*healed*.json")}
    assert set(results) == {
        f"{k} {t}" for k in ("healed", "unhealed") for t in ("window-4", "linear")
    }
    window, linear = results["healed window-4"], results["unhealed linear"]
    assert (window["state"], linear["state"]) == (8 * 2 * 16 * 4, 2 * 8 * 9 * 4)  # 4 and 4 sinks
    assert window["loss"][2] <= window["loss"][1] <= window["loss"][3]
    assert results["healed linear"]["control"] == window["control"]
    capsys.readouterr()
    monkeypatch.setattr(windows, "heal", None)
    assert windows.main([*words, "--without-speed"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| linear")]
    assert [line.split(" | ")[1] for line in printed] == ["", "yes", "", "yes"]


def test_a_token_behind_its_own_stretch_is_no_likelier_where_nothing_is_attended_to(run, tmp_path):
    bench = windows.Bench(str(run), tmp_path, 0)
    for block in bench.lm.blocks:
        torch.nn.init.zeros_(block.attention.o_proj.weight)
    assert bench.copy(bench.lm, 8) == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)


def test_the_usual_targets_have_windows_of_a_linear_layers_bytes(run, tmp_path):
    bench = windows.Bench(str(run), tmp_path, 0)
    assert windows.targets_for(bench.lm, 256)[:2] == ["window:28+sinks:4", "window:1+sinks:4"]
    assert windows.targets_for(bench.lm, 256)[2:] == ["linear", "gla", "gqa:1", "mla:16"]
