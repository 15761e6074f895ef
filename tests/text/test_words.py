"""The tokenizer of words: rows as the loader of reviews cuts them, and the same in transformers."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.data.reviews import RULES, Vocabulary, last_words
from suffice.errors import DataError
from suffice.text import Words, load_tokenizer

WORDS = ("<pad>", "<start>", "<unknown>", "it's", "good", "bad", "été", "br")
TEXTS = ["It's GOOD.<br />(Really!)", "", "bad " * 9, "ÉTÉ, <start> <unknown>", "good bad good"]


def test_rows_are_those_of_the_training_data():
    tokenizer = Words(WORDS, 4)
    split = last_words(TEXTS, [0] * len(TEXTS), Vocabulary(WORDS), 4)
    ids, valid = tokenizer.rows(TEXTS)
    assert torch.equal(ids, split.inputs)
    assert torch.equal(valid, split.valid)
    assert tokenizer.decode(ids[0].tolist()) == "it's good br <unknown>"


def test_it_comes_back_from_its_files(tmp_path):
    Words(WORDS, 4).save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, Words)
    assert (again.words, again.length) == (WORDS, 4)
    assert again.fingerprint == Words(WORDS, 4).fingerprint


def test_the_tokenizer_of_transformers_gives_the_same_rows(tmp_path):
    transformers = pytest.importorskip("transformers")
    Words(WORDS, 4).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    rows = theirs(TEXTS, truncation=True, padding="max_length", return_tensors="pt")
    ids, valid = Words(WORDS, 4).rows(TEXTS)
    assert torch.equal(rows["input_ids"][:, 1:], ids)
    assert torch.equal(rows["attention_mask"][:, 1:].bool(), valid)


def test_files_of_earlier_versions_come_back(tmp_path):
    Words(WORDS, 4).save(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    _, lower, cut = data["normalizer"]["normalizers"]
    cut["pattern"]["Regex"] = "[" + "".join(f"\\{mark}" for mark in RULES["ascii"][0]) + "]"
    start = {"type": "Prepend", "prepend": "<start> "}
    data["normalizer"]["normalizers"] = [lower, cut, start]
    data["truncation"]["max_length"] = data["padding"]["strategy"]["Fixed"] = 4
    (tmp_path / "tokenizer.json").write_text(json.dumps({**data, "post_processor": None}))
    again = load_tokenizer(tmp_path)
    assert (again.words, again.length, again.rule) == (WORDS, 4, "ascii")


HARD = [*TEXTS, "很好，good。<start>", "¿été?", "good\u3000bad ดี", "<start>", "good\x1cbad"]
HARD += ["ΟΔΟΣ, ΟΔΟΣ.ΟΔΟΣ' ΣΑΣ", "Σ 1Σ Ο\u0301Σ οδοσ"]
OTHERS = (
    *WORDS[:3],
    "good",
    "bad",
    "été",
    "很",
    "好",
    "ด",
    *"starg",
    "o",
    "d",
    "¿",
    "οδος",
    *"οσς",
)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_comes_back_and_is_that_of_transformers(tmp_path, rule):
    tokenizer = Words(OTHERS, 6, rule)
    split = last_words(HARD, [0] * len(HARD), Vocabulary(OTHERS), 6, rule)
    ids, valid = tokenizer.rows(HARD)
    assert torch.equal(ids, split.inputs)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.rule, again.fingerprint) == (rule, tokenizer.fingerprint)
    assert torch.equal(again.rows(HARD)[0], ids)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    # transformers reads "<unknown>" in any text as its special token
    texts = [text for text in HARD if "<unknown>" not in text]
    rows = theirs(texts, truncation=True, padding="max_length", return_tensors="pt")
    assert torch.equal(rows["input_ids"][:, 1:], tokenizer.rows(texts)[0])


@pytest.mark.parametrize("words", [("a", "b"), (*WORDS, "good")])
def test_words_that_are_no_vocabulary_are_refused(words):
    with pytest.raises(DataError, match="not a vocabulary"):
        Words(words, 4)


def test_a_file_with_altered_numbers_is_refused(tmp_path):
    Words(WORDS, 4).save(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["model"]["vocab"]["good"] = 7
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="not a vocabulary"):
        load_tokenizer(tmp_path)
