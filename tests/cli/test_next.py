"""Every command that a verb prints as the next step is run as printed."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from importlib import import_module

import pytest

from suffice import preset
from suffice.cli import module_of
from suffice.models import ClassifierConfig, LMConfig, folder
from suffice.testing import drawn
from suffice.text import BPE, Characters, Words
from tests.cli.introspect import CORE

TEXT = "to be or not to be, that is the question. " * 240
SIZES = {"length": 40, "d_model": 16, "depth": 2, "mlp_width": 16}
TRAIN = {"steps": 4, "batch_size": 2, "length": 16, "depth": 1, "warmup": 1, "evaluate_every": 2}
SHORT = ["--tokens", 4, "--prompt", 4, "--rounds", 1]
PLACEHOLDERS = {"NAME": "gqa", "FILE": "text.txt"}
QUICK = {
    "heal": ["--steps", 3, "--set", "batch_size=2", "--set", "evaluate_every=2", "--quiet"],
    "bench": SHORT,
    "generate": ["--tokens", 4],
    "evaluate": ["--limit", 2],
    "convert": ["--tokens", 200],
}
"""Options that make a printed command small; they change nothing that could be refused."""


def settings(**values):
    return [
        word for name, value in (TRAIN | values).items() for word in ("--set", f"{name}={value}")
    ]


def train(mechanism="standard", heads=4):
    sizes = settings(d_model=16, num_heads=heads)
    return ["train", "--data", "text.txt", "--mechanism", mechanism, *sizes, "--out", "run"]


def convert(source="lm", to="gqa:2", *more):
    return ["convert", source, "--to", to, "--tokens", 200, "--out", "out", *more]


SCENARIOS = {
    "list": ["list"],
    "train": train(),
    "train of six heads": train(heads=2),
    "train of shared heads": train("mqa"),
    "train without key maps": train("efficient"),
    "train linear": train("linear"),
    "train of a latent": train("mla"),
    "train of a recurrence": train("gated_deltanet"),
    "convert": convert(),
    "convert exactly": convert(to="gqa:4"),
    "convert a model that records no text": convert("bare", "mqa", "--calibration", "text.txt"),
    "convert without a text": convert("bare", "mqa", "--naive"),
    "convert with a tokenizer": convert(
        "plain", "mqa", "--calibration", "text.txt", "--tokenizer", "lm"
    ),
    "convert a classifier": convert("texts", "standard"),
    "convert byte pairs": convert("pairs"),
    "heal": ["heal", "mqa", "--teacher", "lm", *QUICK["heal"]],
    "heal on another text": [
        "heal",
        "bare-mqa",
        "--teacher",
        "bare",
        "--data",
        "text.txt",
        *QUICK["heal"],
    ],
    "search": ["search", "lm", "--budget", "state<=50%", "--options", "mqa", "--tokens", 200],
    "quantise": ["quantise", "lm"],
    "quantise without a text": ["quantise", "bare", "--calibration", "none"],
    "bench": ["bench", "lm", *SHORT],
    "bench of a model that records no text": ["bench", "bare", *SHORT],
    "bench of packed weights": ["bench", "packed", *SHORT],
    "export": ["export", "lm", "--format", "hf"],
    "export a graph": ["export", "lm", "--format", "onnx"],
    "export byte pairs": ["export", "pairs", "--format", "hf"],
    "export gguf": ["export", "lm", "--format", "gguf"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a text and small models: with a recorded text and without."""
    path = tmp_path_factory.mktemp("models")
    (path / "text.txt").write_text(TEXT)
    letters = Characters.of([TEXT])
    config = LMConfig(**SIZES, vocabulary_size=letters.vocabulary_size)
    for name, facts in (("lm", {"corpus": "text.txt"}), ("bare", {})):
        for ending, mechanism in (("", "standard"), ("-mqa", "mqa")):
            lm = drawn(config.build(preset(mechanism, 16, 4, causal=True)), seed=1)
            folder.save(path / f"{name}{ending}", lm, letters, **facts)
    (path / "lm-mqa").rename(path / "mqa")
    return path


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    """A copy of the models, in which the test works."""
    monkeypatch.setattr(import_module("suffice.convert.search.timing"), "ROUNDS", 2)
    monkeypatch.setattr(import_module("suffice.convert.search.timing"), "SECONDS", 1e-4)
    monkeypatch.setattr(import_module("suffice.convert.search.search"), "ROUNDS", 2)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _others(place, words):
    """Write the models that few scenarios read."""
    if "pairs" in words:
        pairs = BPE.train([TEXT], vocabulary_size=270)
        lm = LMConfig(**SIZES, vocabulary_size=270).build(preset("standard", 16, 4, causal=True))
        folder.save(place / "pairs", drawn(lm, seed=1), pairs, corpus="text.txt")
    if "texts" in words:
        known = Words(("<pad>", "<start>", "<unknown>", "good", "bad"), 8)
        config = ClassifierConfig(
            vocabulary_size=5, length=8, num_classes=2, d_model=16, depth=1, mlp_width=16
        )
        facts = {"classes": ["no", "yes"], "columns": ["text", "label"]}
        folder.save(place / "texts", config.build(preset("efficient", 16, 4)), known, **facts)
        (place / "text.csv").write_text("text\ngood\n")


def commands(printed: str) -> list[list[str]]:
    """Return the words of each command of this program that a verb printed as the next step."""
    _, _, following = printed.partition("\nnext: ")
    lines = [line.strip() for line in following.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("suffice ")]


def shortened(words, place):
    csv = (place / "text.csv").exists()
    filled = [PLACEHOLDERS.get(word, word) for word in words]
    filled = ["text.csv" if csv and word == "text.txt" else word for word in filled]
    return filled + QUICK.get(words[0], [])


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=pytest.mark.slow if "onnx" in words else ())
        for name, words in SCENARIOS.items()
    ],
)
def test_each_next_step_runs_as_printed(suffice, place, words):
    if "onnx" in words:
        pytest.importorskip("onnxruntime")
    _others(place, words)
    if "packed" in words:
        assert suffice("quantise", "lm", "--out", "packed").exit_code == 0
    if "plain" in words:
        (place / "plain").mkdir()
        for name in ("config.json", "model.safetensors"):
            (place / "bare" / name).rename(place / "plain" / name)
    result = suffice(*words)
    assert result.exit_code == 0, result.stderr
    printed = commands(result.stdout)
    assert printed or "next: suffice" not in result.stdout
    for _, *following in printed:
        done = suffice(*shortened(following, place))
        assert done.exit_code == 0, (following, done.stderr)


def test_every_verb_that_prints_next_steps_is_run_here():
    printing = {
        module
        for module in map(module_of, CORE)
        if re.search(r"^    +print_next\(", inspect.getsource(module), re.M)
    }
    assert printing == {module_of(words[0]) for words in SCENARIOS.values()}


def test_a_converted_model_whose_source_moved_asks_for_it(suffice, place):
    assert suffice(*convert()).exit_code == 0
    (place / "lm").rename(place / "elsewhere")
    result = suffice("heal", "out", "--steps", 2)
    assert result.exit_code == 2
    assert f"--teacher: out was converted from {place / 'lm'}" in result.message
    assert suffice("export", "out", "--format", "hf").exit_code == 0
    written = "".join(path.read_text() for path in (place / "out-hf").glob("*.json"))
    assert str(place) not in written
