"""A .gguf file is a model for every verb, and `suffice export --format gguf` writes one."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.convert.sources import open_source
from suffice.export import export_gguf
from suffice.models import folder
from tests.export.models import ROTARY, TEXT, TURNING, language, saved
from tests.export.test_gguf import TOKENIZER, by_the_gguf_package

SHORT = ("--tokens", 4, "--prompt", 8, "--rounds", 1, "--threads", 1)
READ = ("--calibration", "text.txt", "--tokens", 500)


@pytest.fixture
def model(tmp_path):
    """A model of two layers as a file, beside a text of its characters."""
    sizes = {"depth": 2, "vocabulary_size": TOKENIZER.vocabulary_size, "mlp_width": 64}
    saved(tmp_path / "m", language(TURNING, **ROTARY, **sizes))
    (tmp_path / "text.txt").write_text(TEXT * 400)
    return export_gguf(tmp_path / "m", tmp_path / "m.gguf", kind="f32")["file"]


@pytest.fixture
def packed(model, tmp_path):
    """That model with its matrices in Q4_1, by the gguf package."""
    by_the_gguf_package(tmp_path / "packed.gguf", folder.load("m")[0], "Q4_1")
    return "packed.gguf"


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
def test_every_verb_takes_it(suffice, model, packed, words):
    file = model if words[0] == "quantise" else packed
    result = suffice(*(file if word == "{}" else word for word in words))
    assert result.exit_code == 0, result.stderr
    said = "packed.gguf: packed weights are unpacked to float32, " in result.stderr
    assert said == (words[0] in ("convert", "search"))


def test_a_packed_file_is_converted_as_it_was_and_packed_again(suffice, packed, tmp_path):
    """The certificate is that of a folder with the numbers that the file holds."""
    opened = open_source(tmp_path / packed, packed=False)
    folder.save(tmp_path / "exact", opened.model, opened.tokenizer)
    words = ("--to", "gqa:2,window:6+sinks:0", *READ, "--json", "--quiet")
    of_file, of_folder = (
        json.loads(suffice("convert", name, *words, "--out", out).stdout)
        for name, out in ((packed, "a"), ("exact", "b"))
    )
    assert of_file == of_folder
    assert of_file["loss"]["before"] != of_file["loss"]["after"]
    weights, others = (folder.load(tmp_path / out)[0].state_dict() for out in "ab")
    assert all(torch.equal(weights[name], others[name]) for name in others)
    for more in (("quantise", "a", "--bits", 4, "--calibration", "none"), ("convert", "a-4bit")):
        words = (*more, "--to", "mqa", *READ, "--out", "c") if more[0] == "convert" else more
        assert (result := suffice(*words)).exit_code == 0, result.stderr
    assert "a-4bit: packed weights are unpacked" in result.stderr
    file = suffice("export", "a-4bit", "--format", "gguf", "--type", "q4_0")
    assert file.exit_code == 0, file.stderr


def test_a_model_made_of_it_is_healed(suffice, packed):
    assert suffice("convert", packed, "--to", "mqa", *READ, "--out", "mqa").exit_code == 0
    words = ("--data", "text.txt", "--steps", 4, "--set", "batch_size=4", "--set", "length=32")
    result = suffice("heal", "mqa", *words, "--quiet")
    assert result.exit_code == 0, result.stderr
    assert "model: mqa-healed" in result.stdout
