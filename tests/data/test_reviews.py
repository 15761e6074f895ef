from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from suffice.data import load
from suffice.data import reviews as module
from suffice.data.dataset import held_out
from suffice.data.reviews import PAD, START, UNKNOWN, Vocabulary, part_of, words
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import packed

# vocabulary


def test_words_are_lower_case_without_punctuation():
    assert words(
        'A "well-made" film; isn\'t it?!\tTen\n\n(of)\u00a0ten...<br />\u00c9TAT_UNIS'
    ) == [
        *("a", "well", "made", "film", "isn't", "it"),
        *("ten", "of", "ten", "br", "\u00e9tat", "unis"),
    ]
    assert words(" ... ") == []


def test_every_punctuation_mark_but_the_apostrophe_cuts():
    marks = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'
    assert len(marks) == 31
    assert all(words(f"a{mark}b") == ["a", "b"] for mark in marks)
    assert words("a'b") == ["a'b"]


def test_words_are_ranked_by_frequency_then_by_code_point():
    texts = [["z", "b", "a"], ["z", "\u00e9", "b"], ["z", "a", "Z"]]
    vocabulary = Vocabulary.build(texts, 100)
    assert vocabulary.words[:3] == ("<pad>", "<start>", "<unknown>")
    assert vocabulary.words[3:] == ("z", "a", "b", "Z", "\u00e9")
    assert Vocabulary.build(reversed(texts), 100) == vocabulary


def test_size_counts_the_special_ids():
    vocabulary = Vocabulary.build([["a", "a", "b", "b", "c"]], 5)
    assert vocabulary.words[3:] == ("a", "b")
    assert vocabulary.encode(["c", "b", "a", "nothing"]) == [UNKNOWN, 4, 3, UNKNOWN]


def test_a_text_cannot_spell_a_special_id():
    vocabulary = Vocabulary.build([["a"]], 4)
    assert vocabulary.encode(["<pad>", "<start>", "a"]) == [UNKNOWN, UNKNOWN, 3]
    assert (PAD, START, UNKNOWN) == (0, 1, 2)


@pytest.mark.parametrize("size", [3, 0, -1, 10.0, "20000", True])
def test_a_size_without_room_for_a_word_is_refused(size: object):
    with pytest.raises(ConfigError, match=r"vocabulary_size=.* give an integer above 3"):
        Vocabulary.build([["a"]], size)


# reviews

REAL = {"amazon": (16_668, 2_127, 2_093), "womens_clothing": (18_134, 2_146, 2_361)}
FILES = {"amazon": "AMAZON", "womens_clothing": "WOMENS_CLOTHING"}


def rows(count: int = 60) -> list[dict]:
    """Row i has i % 5 + 1 stars, a word of its own, and i % 4 more words."""
    return [
        {"rating": i % 5 + 1, "title": "five", "text": f"Good! w{i}" + " so" * (i % 4), "split": ""}
        for i in range(count)
    ]


def lines(options: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in options).encode()


@pytest.fixture(params=sorted(FILES))
def task(request, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task whose file holds 60 made-up reviews and one without text."""
    content = lines([*rows(), {"rating": 5, "text": " "}])
    name = FILES[request.param]
    file = replace(getattr(module, name), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(module, name, file)
    at = home / file.path
    at.parent.mkdir(parents=True)
    at.write_bytes(lzma.compress(content))
    return request.param


def spoken(data, split, row: int) -> str:
    return " ".join(data.vocabulary[token] for token in split.inputs[row].tolist())


def test_a_part_is_a_function_of_the_text(task: str):
    data = load(task, length=5)
    for part in ("train", "validation", "test"):
        expected = [row for row in rows() if part_of(row["text"]) == part]
        split = getattr(data, part)
        assert split.labels.tolist() == [row["rating"] - 1 for row in expected]
        assert len(split) > 0
    digest = int(hashlib.sha1(b"Good! w0").hexdigest(), 16) % 10
    assert part_of("Good! w0") == {0: "test", 1: "validation"}.get(digest, "train")
    assert (data.name, data.num_classes, data.scores) == (task, 5, ("balanced_accuracy",))
    assert "last 5 words" in data.title


def test_rows_are_the_last_words_padded_in_front(task: str):
    data = load(task, length=5)
    expected = [row for row in rows() if part_of(row["text"]) == "train"]
    for row, review in enumerate(expected):
        words = review["text"].lower().replace("!", "").split()
        message = ["<start>", *words] if len(words) < 5 else words[-5:]
        assert spoken(data, data.train, row) == " ".join(
            [*["<pad>"] * (5 - len(message)), *message]
        )
    assert data.train.valid.tolist() == (data.train.inputs != 0).tolist()


def test_words_are_ranked_in_the_training_rows_that_are_kept(task: str):
    all_rows, few = load(task, length=5), load(task, length=5, rows=7)
    assert (len(few.train), len(few.test)) == (7, len(all_rows.test))
    frequent = {word for word in few.vocabulary if word.startswith("w")}
    assert len(frequent) == 7
    assert frequent < {word for word in all_rows.vocabulary if word.startswith("w")}
    texts = [
        set(spoken(all_rows, all_rows.train, row).split()) for row in range(len(all_rows.train))
    ]
    places = [next(p for p, text in enumerate(texts) if word in text) for word in sorted(frequent)]
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
    ("line", "message"),
    [
        ("{", "row 61, is not a review"),
        ("[1]", "row 61, is not a review"),
        ('{"text": "good"}', "row 61, is not a review .it has no rating"),
        ('{"rating": 6, "text": "good"}', "rating and text are not 1 to 5 and words"),
        ('{"rating": 4, "text": 3}', "rating and text are not 1 to 5 and words"),
    ],
)
def test_a_line_that_is_no_review_is_refused(tmp_path: Path, line: str, message: str):
    path = tmp_path / "reviews.jsonl"
    path.write_bytes(lines(rows()) + line.encode())
    with pytest.raises(DataError, match=rf"reviews\.jsonl, {message}|{message}") as caught:
        load("amazon", path=str(path))
    assert '{"rating": 5, "text": "Good."}' in str(caught.value)


def test_files_that_hold_too_little_are_refused(tmp_path: Path):
    path = tmp_path / "reviews.jsonl"
    path.write_bytes(lines(rows(2)))
    with pytest.raises(DataError, match="holds no review for .*"):
        load("amazon", path=str(path))
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        load("amazon", path=str(tmp_path / "absent.jsonl"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(lines(rows()))[:-20])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz"):
        load("amazon", path=str(cut))


@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.skipif(not os.environ.get("SUFFICE_DATA"), reason="SUFFICE_DATA is not set")
def test_the_real_files(name: str):
    data = load(name, length=8, vocabulary_size=1000)
    assert (len(data.train), len(data.validation), len(data.test)) == REAL[name]
    assert data.test.labels.bincount(minlength=5).argmax() == 4


# imdb

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


def lines_of_imdb(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def put(home: Path, monkeypatch: pytest.MonkeyPatch, part: str, content: bytes) -> Path:
    file = replace(module.FILES[part], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(module.FILES, part, file)
    at = home / file.path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(lzma.compress(content))
    return at


@pytest.fixture
def small(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds 20 + 20 short reviews under the names of the real files."""
    monkeypatch.setattr(module, "ROWS", ROWS)
    for part in ("train", "test"):
        put(home, monkeypatch, part, lines_of_imdb(reviews(part)))
    return home


def archived() -> bytes:
    return packed(
        {
            f"aclImdb/{part}/{('neg', 'pos')[row['label']]}/{row['id']}_1.txt": row["text"].encode()
            for part in ("train", "test")
            for row in reviews(part)
        }
    )


def spoken_of_imdb(task, split, row: int) -> str:
    return " ".join(task.vocabulary[token] for token in split.inputs[row].tolist())


def test_words_are_ranked_in_the_training_rows_alone(small: Path):
    task = load("imdb")
    train, validation = held_out(ROWS, module.VALIDATION)
    more = sum(row % 7 for row in train.tolist())
    counts = Counter({"film": 2 * len(train), "br": more, "so": more})
    counts.update(f"train{row}" for row in train.tolist())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    assert task.vocabulary == ("<pad>", "<start>", "<unknown>", *ranked)
    for row in range(len(validation)):
        assert "<unknown>" in spoken_of_imdb(task, task.validation, row)
    for row in range(len(train)):
        assert "<unknown>" not in spoken_of_imdb(task, task.train, row)


def test_validation_is_the_last_tenth_of_the_fixed_permutation(small: Path):
    task = load("imdb")
    train, validation = held_out(ROWS, module.VALIDATION)
    assert (len(task.train), len(task.validation), len(task.test)) == (18, 2, 20)
    assert task.train.labels.tolist() == (train >= ROWS // 2).long().tolist()
    assert task.validation.labels.tolist() == (validation >= ROWS // 2).long().tolist()
    for place, row in enumerate(train.tolist()):
        assert f"train{row}" in spoken_of_imdb(task, task.train, place).split()


def test_the_archive_is_downloaded_converted_and_removed(home: Path, site, monkeypatch):
    archive = archived()
    site.files["aclImdb_v1.tar.gz"] = archive
    file = replace(
        module.ARCHIVE,
        sha256=hashlib.sha256(archive).hexdigest(),
        urls=(site.url("aclImdb_v1.tar.gz"),),
    )
    monkeypatch.setattr(module, "ARCHIVE", file)
    monkeypatch.setattr(module, "ROWS", ROWS)
    screen = io.StringIO()
    task = load("imdb", length=6, console=Console(file=screen, force_terminal=True, width=120))
    assert "aclImdb_v1.tar.gz" in screen.getvalue()
    assert "converting" in screen.getvalue()
    assert spoken_of_imdb(task, task.test, 2) == "film <unknown> br so br so"
    assert not (home / file.path).exists()
    assert torch.equal(load("imdb", length=6).train.inputs, task.train.inputs)
    assert site.requests == ["aclImdb_v1.tar.gz"]


def test_a_tampered_conversion_is_noticed(home: Path, site, monkeypatch):
    monkeypatch.setattr(module, "ROWS", ROWS)
    at = home / module.FILES["train"].path
    at.parent.mkdir(parents=True)
    at.write_bytes(lzma.compress(lines_of_imdb(reviews("train"))))
    with pytest.raises(DataError, match=r"train\.jsonl\.xz"):
        load("imdb")


@pytest.mark.parametrize("change", ["fewer", "unbalanced", "label"])
def test_another_count_of_reviews_is_refused(small: Path, monkeypatch, change: str):
    rows = reviews("train")
    if change == "fewer":
        rows.pop()
    else:
        rows[0]["label"] = 1 if change == "unbalanced" else 2
    put(small, monkeypatch, "train", lines_of_imdb(rows))
    with pytest.raises(DataError, match=r"train\.jsonl\.xz"):
        load("imdb")


@pytest.mark.parametrize("line", [b"{", b'{"text": "x"}', b"7", b'{"text": "\xff"}'])
def test_a_row_that_is_no_review_is_named(small: Path, monkeypatch, line: bytes):
    put(small, monkeypatch, "test", lines_of_imdb(reviews("test")[:3]) + line + b"\n")
    with pytest.raises(DataError, match=r"test\.jsonl\.xz.*row 4"):
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


# archive

REVIEWS = {
    "aclImdb/train/pos/10_9.txt": "good, <br />\u2028 caf\u00e9",
    "aclImdb/train/pos/2_7.txt": "fine",
    "aclImdb/train/neg/11_1.txt": "bad",
    "aclImdb/test/neg/0_10.txt": "worse\nstill",
}


def test_reviews_become_rows_sorted_by_label_and_id():
    archive = packed({name: text.encode() for name, text in REVIEWS.items()})
    assert module._parse_archive(archive) == {
        "train": [
            {"id": 11, "label": 0, "rating": 1, "text": "bad"},
            {"id": 2, "label": 1, "rating": 7, "text": "fine"},
            {"id": 10, "label": 1, "rating": 9, "text": "good, <br />\u2028 caf\u00e9"},
        ],
        "test": [{"id": 0, "label": 0, "rating": 10, "text": "worse\nstill"}],
    }
    with pytest.raises(DataError, match="archive of IMDB reviews is truncated or damaged"):
        module._parse_archive(packed({"aclImdb/train/pos/1_9.txt": b"\xff\xfe not UTF-8"}))
