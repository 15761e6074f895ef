from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from suffice.errors import ConfigError, DataError
from suffice.text import BPE, Characters, Corpus, Documents, choose_tokenizer, load_tokenizer
from suffice.text.tokenizer import DESCRIPTION, NAMES

# load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BPE.train(["low lower"] * 2, 260).save(tmp_path)
    return tmp_path


def test_the_folder_holds_what_transformers_reads(folder: Path):
    assert sorted(path.name for path in folder.iterdir()) == [DESCRIPTION, NAMES]
    assert json.loads((folder / NAMES).read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
    }


def test_a_name_may_be_spelled_as_transformers_does(folder: Path):
    (folder / NAMES).write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    assert load_tokenizer(folder).end == 0
    (folder / NAMES).write_text("{}")
    assert load_tokenizer(folder).end is None


@pytest.mark.parametrize("name", [DESCRIPTION, NAMES])
def test_an_absent_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name} does not exist; give a file of text"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"is not JSON \(Expecting value"),
        (b'{"model": ', "is not JSON"),
        (b"[" * 100_000, r"is not JSON \(maximum recursion"),
        (b"[1]", "is not a JSON object; give the file of a tokenizer"),
        (b"\xff\xfe{}", r"is not UTF-8 text \(invalid start byte, byte 0\)"),
        (b"{}\0", r"is not text \(it holds zero bytes\)"),
        (b'{"eos_token": 7}', "gives eos_token as 7; a token's text or null is due"),
        (b'{"eos_token": "</s>"}', "has no token '</s>'"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, content: bytes, sentence: str):
    (folder / NAMES).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write .*taken.*writable, or give another folder"):
        BPE.train(["low lower"] * 2, 260).save(tmp_path / "taken")


# chosen


def corpus(*texts):
    parts = ("train", "validation")
    documents = {
        n: Documents(name=n, read=lambda t=t: [t]) for n, t in zip(parts, texts, strict=True)
    }
    return Corpus(name="mine", source="me", **documents)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_characters_are_those_of_both_parts():
    assert choose_tokenizer("characters", corpus("ba", "ca")).characters == "abc"


def test_a_saved_tokenizer_is_loaded(tmp_path):
    Characters("xyz").save(tmp_path)
    assert choose_tokenizer(str(tmp_path), corpus("a", "b")).characters == "xyz"


def test_names_and_files_reach_their_readers(monkeypatch, tmp_path):
    module = import_module("suffice.text.corpus")  # the package has a function of that name
    monkeypatch.setattr(module, "gpt2", lambda console: ("gpt2", console))
    monkeypatch.setattr(module, "llama", lambda path: path)
    assert choose_tokenizer("gpt2", corpus("a", "b")) == ("gpt2", None)
    with pytest.raises(DataError, match="tokenizer.json"):
        choose_tokenizer("llama", corpus("a", "b"))
    place = tmp_path / "suffice" / "tokenizers" / "llama" / "tokenizer.bin"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x")
    assert choose_tokenizer("llama", corpus("a", "b")) == place
    assert choose_tokenizer(str(place), corpus("a", "b")) == place


def test_unknown_names_and_useless_options_are_refused():
    with pytest.raises(ConfigError, match="'gpt3'"):
        choose_tokenizer("gpt3", corpus("a", "b"))
    for name, size in (("bpe", None), ("characters", 300)):
        with pytest.raises(ConfigError, match=f"tokenizer '{name}' with vocabulary_size={size}"):
            choose_tokenizer(name, corpus("a", "b"), vocabulary_size=size)
