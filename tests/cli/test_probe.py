"""`suffice probe`: mechanisms or a model in, what they recall and whether controls failed out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffice import preset
from suffice.measure.probe import Finding, Report, mechanisms
from suffice.measure.statistics import summarise
from suffice.models import LMConfig, folder
from suffice.patterns import Causal, Global, Window
from suffice.text import Characters
from tests.measure.probe.small import tasks

LETTERS = "abcdefghijklmnopqrstuvwxyz. "
TEXT = "the quick brown fox jumps over the lazy dog. " * 80
FULL = preset("standard", 16, 2, causal=True)
SINKS = replace(FULL, pattern=(Window(4) | Global(2)) & Causal())


@pytest.fixture
def run(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    sizes = {"length": 64, "d_model": 16, "depth": 2, "mlp_width": 16}
    lm = LMConfig(**sizes, vocabulary_size=28).build([SINKS, FULL]).eval()
    folder.save(tmp_path / "run", lm, Characters(LETTERS), corpus=str(tmp_path / "text.txt"))


@pytest.fixture
def small(monkeypatch):
    """Let the suite be two tasks of a few steps."""
    own = tasks()
    kept = [own["mqar-4-d64"], own["copy"]]
    monkeypatch.setattr(mechanisms, "suite", lambda *, quick: kept if quick else kept[:1])


def test_what_never_began_is_not_gone_on_with(suffice, tmp_path):
    result = suffice("probe", "--mechanisms", "standart", "--out", "p")
    assert result.exit_code == 2
    assert "did you mean 'standard'?" in result.message
    assert "Resume with" not in result.message
    assert not (tmp_path / "p").exists()


def test_mechanisms_are_trained_and_reported(suffice, small, tmp_path):
    result = suffice("probe", "--mechanisms", "linear", "--quick", "--out", "p", "--seeds", 2)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "mqar-4-d64, chance 25.0%" in lines
    assert "accuracy, % linear sliding_window" in lines
    copied = next(line for line in lines if line.startswith("8-12 symbols, as trained"))
    assert copied.endswith("*")
    assert copied.count("±") == 2
    assert any(line.startswith("solved at step not in 1") for line in lines)
    assert "* control failed as it must: 2 of 2" in lines
    assert "results: p" in lines
    stored = json.loads((tmp_path / "p" / "probe.json").read_text())
    assert (stored["kind"], stored["seeds"], stored["quick"]) == ("mechanisms", 2, True)
    assert (tmp_path / "p" / "recall.png").read_bytes()[:4] == b"\x89PNG"
    result = suffice("probe", "--mechanisms", "standard", "--quick", "--out", "p", "--quiet")
    assert (result.exit_code, "p is not empty; resume it with --resume" in result.message) == (
        2,
        True,
    )
    words = ("--mechanisms", "linear", "--quick", "--seeds", 2, "--out", "p", "--resume")
    again = suffice("probe", *words, "--json", "--quiet")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["findings"] == stored["findings"]
    report = suffice("compare", "--resume", "--out", "p/copy", "--quiet", "--json")
    cells = json.loads(report.stdout)["results"]["cells"]
    assert [cell["mechanism"] for cell in cells] == ["linear", "sliding_window"] * 2


def test_an_interruption_tells_how_to_go_on(suffice, small, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice.measure.compare.train_cell", interrupt)
    result = suffice("probe", "--mechanisms", "standard", "--seeds", 1)
    assert result.exit_code == 130
    assert "interrupted. Finished work is kept. Resume with:" in result.message
    assert "--seeds 1 --out runs/probe-" in result.message
    assert result.message.endswith("--resume")


def test_a_checkpoint_is_probed_unchanged(suffice, run, tmp_path):
    result = suffice("probe", "run", "--quick", "--seeds", 1, "--out", "p", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "recall of drawn tokens, 16 rows each; the model can attend to everything"
    assert any(line.startswith("a stretch again, shuffled 15 ") for line in lines)
    assert any(line.startswith("passkey at 50%, another cue 15 ") for line in lines)
    at = lines.index("sinks, the first 2 tokens (layer 0)")
    assert lines[at + 1].startswith("text: 3.")
    assert lines[at + 2].startswith("28 tokens again: 3.")
    assert "* control failed as it must: 3 of 3" in lines
    stored = json.loads((tmp_path / "p" / "probe.json").read_text())
    assert (stored["kind"], stored["reach"], stored["rows"]) == ("checkpoint", None, 16)
    result = suffice("probe", "run", "--quick", "--seeds", 1, "--json", "--quiet")
    assert json.loads(result.stdout)["recalls"] == stored["recalls"]


def test_a_model_without_text_or_branches(suffice, run, tmp_path):
    lm = LMConfig(length=64, d_model=16, depth=1, mlp_width=16, vocabulary_size=28).build(FULL)
    folder.save(tmp_path / "plain", lm, Characters(LETTERS))
    result = suffice("probe", "plain", "--quick", "--seeds", 1, "--quiet")
    assert "no branches: every layer attends in one way, and all alike" in result.stdout
    lm = LMConfig(length=64, d_model=16, depth=1, mlp_width=16, vocabulary_size=28).build(SINKS)
    folder.save(tmp_path / "sinks", lm, Characters(LETTERS))
    result = suffice("probe", "sinks", "--quick", "--seeds", 1, "--quiet", "--json")
    assert {one["on"] for one in json.loads(result.stdout)["ablations"]} == {"28 tokens again"}
    result = suffice("probe", "sinks", "--quick", "--seeds", 1, "--quiet", "--data", "text.txt")
    assert "  text: 3." in result.stdout


WRONG = {
    "nothing": ([], "give either a checkpoint or --mechanisms"),
    "both": (
        ["run", "--mechanisms", "standard"],
        "give either a checkpoint or --mechanisms, not both",
    ),
    "data": (["--mechanisms", "standard", "--data", "x"], "--data is for a checkpoint; leave it"),
    "resume": (["run", "--resume"], "--resume is for --mechanisms; leave it out"),
    "where": (["--mechanisms", "standard", "--resume"], "--resume needs the folder"),
    "unknown": (["--mechanisms", "mqua"], "unknown mechanism 'mqua'; did you mean 'mqa'?"),
    "absent": (["nowhere"], "folder: nowhere"),
    "seeds": (["run", "--seeds", "0"], "seeds=0; give at least 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_is_refused_in_one_sentence(case, suffice, run, tmp_path):
    words, said = WRONG[case]
    result = suffice("probe", *words, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.message
    assert not (tmp_path / "runs").exists()


def finding(**changes):
    given = {
        "task": "t",
        "mechanism": "standard",
        "view": "far",
        "accuracy": summarise([0.9]),
        "chance": 0.25,
        "solved": (None,),
        "steps": 640,
        "state": 64.0,
        "control": "nobody can",
    }
    return Finding(**{**given, **changes})


def test_an_alarm_is_loud(suffice, run, monkeypatch):
    report = Report(kind="mechanisms", facts={}, findings=(finding(),))
    monkeypatch.setattr("suffice.measure.probe.probe_mechanisms", lambda *_, **__: report)
    result = suffice("probe", "--mechanisms", "standard", "--quiet")
    assert result.exit_code == 1
    assert "ALARM: 1 of 1 controls succeeded" in result.message
    assert "90.0 ALARM" in result.stdout
    assert "ALARM: control succeeded: t, standard, far (nobody can)" in result.stdout
