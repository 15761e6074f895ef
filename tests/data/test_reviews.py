from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.data import load, reviews
from suffice.data.reviews import part_of
from suffice.errors import ConfigError, DataError

REAL = {"amazon": (16_668, 2_127, 2_093), "womens_clothing": (18_134, 2_146, 2_361)}
MODULES = {"amazon": reviews, "womens_clothing": reviews}


def rows(count: int = 60) -> list[dict]:
    """Row i has i % 5 + 1 stars, a word of its own, and i % 4 more words."""
    return [
        {"rating": i % 5 + 1, "title": "five", "text": f"Good! w{i}" + " so" * (i % 4), "split": ""}
        for i in range(count)
    ]


def lines(given: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in given).encode()


@pytest.fixture(params=sorted(MODULES))
def task(request, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task whose file holds 60 made-up reviews and one without text."""
    content = lines([*rows(), {"rating": 5, "text": " "}])
    module = MODULES[request.param]
    file = replace(module.FILE, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(module, "FILE", file)
    at = home / file.path
    at.parent.mkdir(parents=True)
    at.write_bytes(lzma.compress(content))
    return request.param


def spoken(data, split, row: int) -> str:
    return " ".join(data.vocabulary[token] for token in split.inputs[row].tolist())


def test_a_part_is_a_function_of_the_text(task: str):
    data = load(task, length=5)
    for part in ("train", "validation", "test"):
        wanted = [row for row in rows() if part_of(row["text"]) == part]
        split = getattr(data, part)
        assert split.labels.tolist() == [row["rating"] - 1 for row in wanted]
        assert len(split) > 0
    digest = int(hashlib.sha1(b"Good! w0").hexdigest(), 16) % 10
    assert part_of("Good! w0") == {0: "test", 1: "validation"}.get(digest, "train")
    assert (data.name, data.num_classes, data.scores) == (task, 5, ("balanced_accuracy",))
    assert "last 5 words" in data.title


def test_rows_are_the_last_words_padded_in_front(task: str):
    data = load(task, length=5)
    wanted = [row for row in rows() if part_of(row["text"]) == "train"]
    for row, review in enumerate(wanted):
        words = review["text"].lower().replace("!", "").split()
        told = ["<start>", *words] if len(words) < 5 else words[-5:]
        assert spoken(data, data.train, row) == " ".join([*["<pad>"] * (5 - len(told)), *told])
    assert data.train.valid.tolist() == (data.train.inputs != 0).tolist()


def test_words_are_ranked_in_the_training_rows_that_are_kept(task: str):
    whole, few = load(task, length=5), load(task, length=5, rows=7)
    assert (len(few.train), len(few.test)) == (7, len(whole.test))
    own = {word for word in few.vocabulary if word.startswith("w")}
    assert len(own) == 7
    assert own < {word for word in whole.vocabulary if word.startswith("w")}
    texts = [set(spoken(whole, whole.train, row).split()) for row in range(len(whole.train))]
    places = [next(p for p, text in enumerate(texts) if word in text) for word in sorted(own)]
    assert sorted(places) != list(range(7)), "drawn, not the first"
    assert len(load(task, vocabulary_size=5).vocabulary) == 5


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_users_file_of_either_form(tmp_path: Path, pack):
    full = [{"overall": float(row["rating"]), "reviewText": row["text"]} for row in rows()]
    full.append({"overall": 1.0})  # as the full set has: a rating without words
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    suffix = {bytes: "", gzip.compress: ".gz", lzma.compress: ".xz"}[pack]
    theirs = theirs.with_name(theirs.name + suffix)
    ours.write_bytes(lines(rows()))
    theirs.write_bytes(pack(lines(full)))
    first, second = (load("amazon", path=str(path), length=6) for path in (ours, theirs))
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(first.test.labels, second.test.labels)
    assert "of the user" in first.title


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "row 61, is not a review"),
        ("[1]", "row 61, is not a review"),
        ('{"text": "good"}', "row 61, is not a review .it has no rating"),
        ('{"rating": 6, "text": "good"}', "rating and text are not 1 to 5 and words"),
        ('{"rating": 4, "text": 3}', "rating and text are not 1 to 5 and words"),
    ],
)
def test_a_line_that_is_no_review_is_refused(tmp_path: Path, line: str, told: str):
    path = tmp_path / "reviews.jsonl"
    path.write_bytes(lines(rows()) + line.encode())
    with pytest.raises(DataError, match=rf"reviews\.jsonl, {told}|{told}") as caught:
        load("amazon", path=str(path))
    assert '{"rating": 5, "text": "Good."}' in str(caught.value)


def test_files_that_hold_too_little_are_refused(tmp_path: Path):
    path = tmp_path / "reviews.jsonl"
    path.write_bytes(lines(rows(2)))
    with pytest.raises(DataError, match="holds no review for .*; give a file of more reviews"):
        load("amazon", path=str(path))
    with pytest.raises(
        DataError, match=r"cannot read .*absent\.jsonl .*; give the path of a whole"
    ):
        load("amazon", path=str(tmp_path / "absent.jsonl"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(lines(rows()))[:-20])
    with pytest.raises(DataError, match=r"cannot read .*cut\.jsonl\.gz .*; give the path"):
        load("amazon", path=str(cut))


@pytest.mark.parametrize("task_name", sorted(MODULES))
def test_options_are_checked_before_a_file_is_read(home: Path, task_name: str):
    with pytest.raises(ConfigError, match=rf"{task_name}: length=0 is not legal; give an integer"):
        load(task_name, length=0)
    with pytest.raises(ConfigError, match=r"rows=True is not legal"):
        load(task_name, rows=True)
    with pytest.raises(ConfigError, match="vocabulary_size=3 is not legal"):
        load(task_name, vocabulary_size=3)


@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.skipif(not os.environ.get("SUFFICE_DATA"), reason="SUFFICE_DATA is not set")
def test_the_real_files(name: str):
    data = load(name, length=8, vocabulary_size=1000)
    assert (len(data.train), len(data.validation), len(data.test)) == REAL[name]
    assert data.test.labels.bincount(minlength=5).argmax() == 4
