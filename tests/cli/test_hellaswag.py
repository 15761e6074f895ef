"""`suffice reproduce hellaswag`: language models trained, asked, and what they answered."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from suffice.cli import reproduce
from suffice.cli import reproduce as module
from suffice.cli import train as training
from suffice.data.files import digest
from suffice.errors import ConfigError
from suffice.measure import evaluation
from suffice.papers import hellaswag as scores
from suffice.papers.hellaswag import FILE, read_scored, write_scored
from suffice.recipes import stdlib_bpe
from tests.cli.test_reproduce import asked
from tests.papers.test_hellaswag import ONE

TEXT = "the cat sat on the mat and the dog ran to the park. " * 300
ITEMS = [
    {"ctx": "Cook: the cat", "endings": ["sat on", "ran to", "park", "mat"], "label": label}
    for label in (0, 1)
]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Let nothing be published, and the recipe be a model of a block on the user's text."""
    (tmp_path / "pyproject.toml").touch()

    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path / "suffice" / "results")
    (tmp_path / "text.txt").write_text(TEXT)
    place = tmp_path / "data" / "eval" / "hellaswag"
    place.mkdir(parents=True)
    (place / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    settings = {"steps": 2, "warmup": 0, "length": 16, "batch_size": 2, "evaluate_every": 2}
    sizes = {"d_model": 8, "depth": 1, "num_heads": 2, "vocabulary_size": 270}
    tiny = stdlib_bpe().changed({**settings, **sizes})

    def lm_recipe(name, *, scale):
        return replace(tiny, name=name, scale=scale)

    monkeypatch.setattr("suffice.recipes.lm_recipe", lm_recipe)
    ask = evaluation.evaluate_task
    monkeypatch.setattr(
        evaluation,
        "evaluate_task",
        lambda *given, **words: ask(*given, data=str(place / "items.jsonl"), **words),
    )
    digest.cache_clear()


WORDS = ("reproduce", "hellaswag", "--scale", "small", "--quiet", "--threads", 1)


def test_models_are_trained_and_probed_once(suffice, monkeypatch):
    result = suffice(*WORDS)
    assert result.exit_code == 0
    assert (
        "Blank values were not run: suffice reproduce hellaswag --scale small --run"
        in result.stdout
    )
    result = suffice(*WORDS, "--data", "text.txt", "--run", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [one["mechanism"] for one in found] == ["standard", "optimised", "efficient"]
    assert {(one["items"], one["of"], one["scale"]) for one in found} == {(2, 2, "small")}
    assert {one["corpus"] for one in found} == {"text.txt"}
    assert all(set(one["scores"]) == {"acc", "acc_norm", "sum", "average"} for one in found)
    assert found[0]["parameters"] > found[1]["parameters"] > found[2]["parameters"]
    (place,) = Path("runs/reproduce").iterdir()
    assert place.name.startswith("hellaswag-small-text.txt-")
    monkeypatch.setattr(module, "_scored", lambda *_, **__: 1 / 0)
    again = suffice(*WORDS, "--data", "text.txt", "--run", "--json")
    assert json.loads(again.stdout) == found
    result = suffice(*WORDS, "--data", "text.txt", "--csv")
    assert len(result.stdout.splitlines()) == 1 + 3 * 4
    result = suffice(*WORDS, "--data", "text.txt")
    assert "not run" not in result.stdout
    assert "2 of 2 items" in " ".join(result.stdout.split())


def test_no_training_is_begun_after_the_minutes(suffice, monkeypatch):
    times = iter([0.0, 1.0, 61.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    told = []

    def _scored(folder, each, console, *, quiet):
        told.append(each.mechanism)
        return replace(ONE, mechanism=each.mechanism)

    class Nothing:
        write = staticmethod(lambda *_: None)
        open = staticmethod(lambda *_: Nothing)
        train = staticmethod(lambda **_: None)

    monkeypatch.setattr(training, "TrainingFiles", Nothing)
    monkeypatch.setattr(module, "_scored", _scored)
    suffice(*WORDS, "--run", "--max-minutes", 1)
    assert told == ["standard"]


def test_scores_are_published_and_shown_without_a_folder(suffice):
    folder = Path("runs/reproduce/hellaswag-small/efficient")
    wanted = training.TrainOptions(
        recipe="nanogpt_124m", scale="small", mechanism="efficient", settings={}, seed=0
    )
    training.run_folder(folder).claim(asdict(wanted), resume=False)
    (folder / "model.safetensors").write_bytes(b"1")
    write_scored(folder, replace(ONE, weights=scores.digest(folder / "model.safetensors")))
    assert read_scored(folder)
    result = suffice(*WORDS, "--publish")
    assert "published: " in result.stderr
    (folder / FILE).unlink()
    result = suffice("reproduce", "hellaswag", "--quiet")
    assert "26.00 ± 2.00" in result.stdout
    assert "small scale: not the paper's size" in " ".join(result.stdout.split())
    result = suffice("reproduce", "hellaswag", "--scale", "paper")
    assert "26.00" not in result.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 2}, "hellaswag scores one model of each mechanism"),
        ({"publish": True, "data": __file__}, "--publish writes results"),
        ({"publish": True}, "there is no hellaswag.json to publish yet; start with --run"),
    ],
)
def test_what_it_does_not_have_is_refused(changes, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        reproduce.answer(asked(table="hellaswag", **changes), Console(file=io.StringIO()))


def test_a_folder_of_another_training_is_refused(tmp_path):
    other = training.TrainOptions(recipe="stdlib_bpe", settings={})
    training.run_folder(tmp_path / "standard").claim(asdict(other), resume=False)
    with pytest.raises(ConfigError, match="holds a training with other settings; name another fol"):
        reproduce.answer(asked(table="hellaswag", out=tmp_path), Console(file=io.StringIO()))
