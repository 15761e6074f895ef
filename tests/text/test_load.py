from __future__ import annotations

import json
from pathlib import Path

import pytest

from suffice.errors import DataError
from suffice.text import BPE, load_tokenizer
from suffice.text.tokenizer import DESCRIPTION, NAMES


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
def test_a_damaged_file_is_told(folder: Path, content: bytes, sentence: str):
    (folder / NAMES).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write .*taken.*writable, or give another folder"):
        BPE.train(["low lower"] * 2, 260).save(tmp_path / "taken")
