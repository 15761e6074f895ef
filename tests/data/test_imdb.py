from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from suffice.data import load
from suffice.data import reviews as imdb
from suffice.data.dataset import held_out
from suffice.errors import ConfigError, DataError

ROWS = 20


def reviews(part: str) -> list[dict]:
    """Row i says "film" twice, its own word, and i % 7 more words; the last words differ."""
    return [
        {
            "id": row,
            "label": row // (ROWS // 2),
            "rating": 1,
            "text": f"Film!\x85\u2028FILM, {part}{row}" + " <br /> so" * (row % 7),
        }
        for row in range(ROWS)
    ]


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def put(home: Path, monkeypatch: pytest.MonkeyPatch, part: str, content: bytes) -> Path:
    file = replace(imdb.FILES[part], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(imdb.FILES, part, file)
    at = home / file.path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(lzma.compress(content))
    return at


@pytest.fixture
def small(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds 20 + 20 short reviews under the names of the real files."""
    monkeypatch.setattr(imdb, "ROWS", ROWS)
    for part in ("train", "test"):
        put(home, monkeypatch, part, lines(reviews(part)))
    return home


def packed() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for part in ("train", "test"):
            for row in reviews(part):
                label = ("neg", "pos")[row["label"]]
                info = tarfile.TarInfo(f"aclImdb/{part}/{label}/{row['id']}_1.txt")
                info.size = len(row["text"].encode())
                archive.addfile(info, io.BytesIO(row["text"].encode()))
    return buffer.getvalue()


def spoken(task, split, row: int) -> str:
    return " ".join(task.vocabulary[token] for token in split.inputs[row].tolist())


def test_rows_are_the_last_words_padded_in_front(small: Path):
    task = load("imdb", length=6)
    pads = "<pad> <pad> "
    assert spoken(task, task.test, 0) == f"{pads}<start> film film <unknown>"
    assert spoken(task, task.test, 1) == "<start> film film <unknown> br so"
    assert spoken(task, task.test, 2) == "film <unknown> br so br so"
    assert spoken(task, task.test, 6) == "br so br so br so"
    assert task.test.inputs.dtype == torch.int64
    assert task.test.valid is not None
    assert task.test.valid[:2].tolist() == [[False] * 2 + [True] * 4, [True] * 6]


def test_a_review_that_fills_the_row_loses_its_start(small: Path):
    task = load("imdb", length=3)
    assert spoken(task, task.test, 0) == "film film <unknown>"
    assert spoken(task, load("imdb", length=4).test, 0) == "<start> film film <unknown>"
    assert spoken(task, load("imdb", length=1).test, 1) == "so"


def test_words_are_ranked_in_the_training_rows_alone(small: Path):
    task = load("imdb")
    train, validation = held_out(ROWS, imdb.VALIDATION)
    more = sum(row % 7 for row in train.tolist())
    counts = Counter({"film": 2 * len(train), "br": more, "so": more})
    counts.update(f"train{row}" for row in train.tolist())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    assert task.vocabulary == ("<pad>", "<start>", "<unknown>", *ranked)
    for row in range(len(validation)):
        assert "<unknown>" in spoken(task, task.validation, row)
    for row in range(len(train)):
        assert "<unknown>" not in spoken(task, task.train, row)


def test_validation_is_the_last_tenth_of_the_fixed_permutation(small: Path):
    task = load("imdb")
    train, validation = held_out(ROWS, imdb.VALIDATION)
    assert (len(task.train), len(task.validation), len(task.test)) == (18, 2, 20)
    assert task.train.labels.tolist() == (train >= ROWS // 2).long().tolist()
    assert task.validation.labels.tolist() == (validation >= ROWS // 2).long().tolist()
    for place, row in enumerate(train.tolist()):
        assert f"train{row}" in spoken(task, task.train, place).split()


def test_vocabulary_size_bounds_the_ids(small: Path):
    task = load("imdb", vocabulary_size=4)
    assert len(task.vocabulary) == 4
    assert task.train.inputs.max() == 3


@pytest.mark.parametrize("length", [0, -1, 32.0, "32", True])
def test_another_length_is_refused(length: object):
    with pytest.raises(ConfigError, match=r"length=.* tokens is not legal; give an integer >= 1"):
        load("imdb", length=length)


def test_another_vocabulary_size_is_refused_before_any_file_is_read(home: Path):
    with pytest.raises(ConfigError, match="vocabulary_size=3 is not legal"):
        load("imdb", vocabulary_size=3)


def test_the_archive_is_downloaded_converted_and_removed(home: Path, site, monkeypatch):
    archive = packed()
    site.files["aclImdb_v1.tar.gz"] = archive
    file = replace(
        imdb.ARCHIVE,
        sha256=hashlib.sha256(archive).hexdigest(),
        urls=(site.url("aclImdb_v1.tar.gz"),),
    )
    monkeypatch.setattr(imdb, "ARCHIVE", file)
    monkeypatch.setattr(imdb, "ROWS", ROWS)
    screen = io.StringIO()
    task = load("imdb", length=6, console=Console(file=screen, force_terminal=True, width=120))
    assert "aclImdb_v1.tar.gz" in screen.getvalue()
    assert "converting" in screen.getvalue()
    assert spoken(task, task.test, 2) == "film <unknown> br so br so"
    assert not (home / file.path).exists()
    assert torch.equal(load("imdb", length=6).train.inputs, task.train.inputs)
    assert site.asked == ["aclImdb_v1.tar.gz"]


@pytest.mark.parametrize("place", ["mine", "cache/suffice"])
def test_an_archive_that_was_there_is_converted_and_kept(home: Path, tmp_path, monkeypatch, place):
    archive = packed()
    at = tmp_path / place / imdb.ARCHIVE.path
    at.parent.mkdir(parents=True)
    at.write_bytes(archive)
    if place == "mine":
        monkeypatch.setenv("SUFFICE_DATA", str(tmp_path / place))
    file = replace(imdb.ARCHIVE, sha256=hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(imdb, "ARCHIVE", file)
    monkeypatch.setattr(imdb, "ROWS", ROWS)
    assert len(load("imdb").train) == 18
    assert at.read_bytes() == archive
    assert (home / imdb.FILES["train"].path).exists()


def test_a_tampered_conversion_is_noticed(home: Path, site, monkeypatch):
    monkeypatch.setattr(imdb, "ROWS", ROWS)
    at = home / imdb.FILES["train"].path
    at.parent.mkdir(parents=True)
    at.write_bytes(lzma.compress(lines(reviews("train"))))
    with pytest.raises(DataError, match=r"train\.jsonl\.xz is truncated or altered.*delete it"):
        load("imdb")


def test_absent_and_offline_names_the_archive(home: Path, site, monkeypatch):
    monkeypatch.setattr(imdb, "ARCHIVE", replace(imdb.ARCHIVE, urls=(site.url("gone"),)))
    with pytest.raises(DataError, match=r"put it at .*imdb/aclImdb_v1\.tar\.gz"):
        load("imdb")


@pytest.mark.parametrize("change", ["fewer", "unbalanced", "label"])
def test_another_count_of_reviews_is_refused(small: Path, monkeypatch, change: str):
    rows = reviews("train")
    if change == "fewer":
        rows.pop()
    else:
        rows[0]["label"] = 1 if change == "unbalanced" else 2
    put(small, monkeypatch, "train", lines(rows))
    with pytest.raises(DataError, match=r"train\.jsonl\.xz holds .* not 20, half of each"):
        load("imdb")


@pytest.mark.parametrize("line", [b"{", b'{"text": "x"}', b"7", b'{"text": "\xff"}'])
def test_a_row_that_is_no_review_is_named(small: Path, monkeypatch, line: bytes):
    put(small, monkeypatch, "test", lines(reviews("test")[:3]) + line + b"\n")
    with pytest.raises(DataError, match=r"test\.jsonl\.xz, row 4, is not a review"):
        load("imdb")


@pytest.mark.skipif("SUFFICE_DATA" not in os.environ, reason="SUFFICE_DATA names no data folder")
def test_the_real_set_has_the_published_counts():
    task = load("imdb")
    assert (len(task.train), len(task.validation), len(task.test)) == (22_500, 2_500, 25_000)
    labels = torch.cat((task.train.labels, task.validation.labels))
    assert labels.bincount().tolist() == task.test.labels.bincount().tolist() == [12_500, 12_500]
    assert task.vocabulary is not None
    assert len(task.vocabulary) == 20_000
    assert task.vocabulary[3:8] == ("the", "and", "a", "of", "to")
    assert task.train.inputs.shape == (22_500, 32)
