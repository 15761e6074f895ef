"""A .gguf file is a model for every verb, and `suffice export --format gguf` writes one."""

from __future__ import annotations

import json

import pytest

from suffice.export import export_gguf
from tests.export.models import ROTARY, TEXT, TURNING, language, saved
from tests.export.test_gguf import TOKENIZER

SHORT = ("--tokens", 4, "--prompt", 8, "--rounds", 1, "--threads", 1)
READ = ("--calibration", "text.txt", "--tokens", 500)


@pytest.fixture
def model(tmp_path):
    """A model of two layers as a file, beside a text of its characters."""
    sizes = {"depth": 2, "vocabulary_size": TOKENIZER.vocabulary_size}
    saved(tmp_path / "m", language(TURNING, **ROTARY, **sizes))
    (tmp_path / "text.txt").write_text(TEXT * 400)
    return export_gguf(tmp_path / "m", tmp_path / "m.gguf", kind="f32")["file"]


def test_the_command_says_how_the_file_is_used(suffice, tmp_path):
    saved(tmp_path / "m")
    result = suffice("export", "m", "--format", "gguf", "--type", "q8_0", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "m-q8_0.gguf").is_file()
    for words in ("as llama, matrices in q8_0", "ollama create m-q8_0", "LM Studio", "llama-cli"):
        assert words in result.stdout
    again = suffice("export", "m", "--format", "gguf", "--type", "q8_0", "--json", "--quiet")
    assert json.loads(again.stdout)["architecture"] == "llama"


def test_a_type_belongs_to_gguf_alone(suffice, tmp_path):
    saved(tmp_path / "m")
    result = suffice("export", "m", "--format", "hf", "--type", "f16")
    assert result.exit_code == 2
    assert "--type f16 is for --format gguf" in result.message


def test_it_writes_the_text_of_the_folder(suffice, model):
    words = ("--prompt", "to be", "--temperature", 0, "--tokens", 20)
    assert suffice("generate", model, *words).stdout == suffice("generate", "m", *words).stdout


def test_it_is_judged_as_the_folder(suffice, model):
    words = ("--data", "text.txt", "--limit", 5, "--json", "--quiet")
    of_file, of_folder = (
        json.loads(suffice("evaluate", name, *words).stdout) for name in (model, "m")
    )
    assert of_file["scores"][0]["value"] == pytest.approx(of_folder["scores"][0]["value"], abs=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        ("quantise", "{}", "--bits", 4, "--calibration", "none", "--out", "made"),
        ("convert", "{}", "--to", "mqa", *READ, "--out", "made"),
        (
            "search",
            "{}",
            "--budget",
            "state<=50%",
            "--options",
            "gqa:2",
            *READ,
            "--out",
            "made.json",
        ),
        ("export", "{}", "--format", "hf", "--out", "made"),
        ("export", "{}", "--format", "gguf", "--type", "q4_0", "--out", "made.gguf"),
        ("bench", "{}", *SHORT),
    ],
    ids=lambda words: " ".join(map(str, words[:1])),
)
def test_every_verb_takes_it(suffice, model, words):
    result = suffice(*(model if word == "{}" else word for word in words))
    assert result.exit_code == 0, result.stderr


def test_a_model_made_of_it_is_healed(suffice, model):
    assert suffice("convert", model, "--to", "mqa", *READ, "--out", "mqa").exit_code == 0
    words = ("--data", "text.txt", "--steps", 4, "--set", "batch_size=4", "--set", "length=32")
    result = suffice("heal", "mqa", "--teacher", model, *words, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert "model: mqa-healed" in result.stdout


@pytest.mark.parametrize("content", [b"", b"GGUF", b"nothing of the kind", bytes(64)])
@pytest.mark.parametrize("verb", ["generate", "evaluate", "bench", "quantise", "export"])
def test_a_damaged_file_is_refused_in_words(suffice, tmp_path, verb, content):
    (tmp_path / "m.gguf").write_bytes(content)
    more = {"generate": ("--prompt", "to"), "export": ("--format", "hf")}.get(verb, ())
    result = suffice(verb, "m.gguf", *more)
    assert result.exit_code == 2
    assert "m.gguf" in result.message
