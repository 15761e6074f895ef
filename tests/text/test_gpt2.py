from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from suffice.errors import DataError
from suffice.text import gpt2, load_tokenizer

MODULE = import_module("suffice.text.bpe")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w")]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in GPT-2's format with five merges."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [left + right for left, right in MERGES] + ["<|endoftext|>"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES), ""]
    (tmp_path / "encoder.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (tmp_path / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    hello = [259, *(tokens.index(letter) for letter in "x!")]
    monkeypatch.setattr(MODULE, "KNOWN", {"hellox!": hello})
    return tmp_path


def test_the_two_files_make_a_tokenizer(small: Path):
    tokenizer = gpt2(small)
    assert tokenizer.encode("hello w") == [259, 260]
    assert tokenizer.decode([259, 260]) == "hello w"
    assert tokenizer.vocabulary_size == 262
    assert (tokenizer.begin, tokenizer.end) == (None, 261)
    assert 261 not in tokenizer.encode("<|endoftext|>")


def test_the_files_may_have_the_names_of_hugging_face(small: Path):
    fingerprint = gpt2(small).fingerprint
    (small / "encoder.json").rename(small / "vocab.json")
    (small / "vocab.bpe").rename(small / "merges.txt")
    assert gpt2(small).fingerprint == fingerprint


def test_a_vocabulary_that_is_not_gpt2s_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with pytest.raises(
        DataError, match=r"is not GPT-2's: 'Hello, world!' gives \[.*not \[15496, 1"
    ):
        gpt2(small)


def test_a_folder_without_the_files_is_told(small: Path):
    (small / "vocab.bpe").unlink()
    with pytest.raises(
        DataError, match=r"holds neither encoder\.json with vocab\.bpe nor vocab\.js"
    ):
        gpt2(small)


def test_without_a_folder_the_users_data_is_read(small: Path, home: Path, monkeypatch):
    for name, file in (("VOCABULARY", MODULE.VOCABULARY), ("MERGES", MODULE.MERGES)):
        content = (small / Path(file.path).name).read_bytes()
        at = home / file.path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content)
        known = replace(file, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(MODULE, name, known)
    assert gpt2().fingerprint == gpt2(small).fingerprint


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("encoder.json", "{", "is not JSON"),
        ("encoder.json", "[]", "is not a JSON object"),
        ("encoder.json", "{}", "cannot use"),
        ("encoder.json", '{"a": "b", "c": []}', "cannot use"),
        ("vocab.bpe", "h e l\n", "cannot use"),
        ("vocab.bpe", "q q\n", "Token `qq` out of vocabulary"),
    ],
)
def test_damaged_files_are_told(small: Path, name: str, content: str, sentence: str):
    (small / name).write_text(content)
    with pytest.raises(DataError, match=sentence) as caught:
        gpt2(small)
    assert str(small) in str(caught.value)


def test_without_a_folder_the_places_looked_at_are_told(home: Path):
    with pytest.raises(
        DataError, match=r"tokenizers/gpt2/encoder\.json was found neither below SUF"
    ):
        gpt2()


def test_the_published_files_give_the_published_encodings(given: Path):
    tokenizer = gpt2()
    assert (tokenizer.vocabulary_size, tokenizer.end) == (50_257, 50_256)
    for text, ids in (
        ("hello world", [31373, 995]),
        ("<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        (" a", [257]),
        ("", []),
    ):
        assert tokenizer.encode(text) == ids


def test_it_is_saved_and_loaded(small: Path, tmp_path: Path):
    tokenizer = gpt2(small)
    tokenizer.save(tmp_path / "model")
    assert load_tokenizer(tmp_path / "model").fingerprint == tokenizer.fingerprint
