from __future__ import annotations

import hashlib
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.data import load, translation
from suffice.data.dataset import IGNORE_INDEX
from suffice.data.translation import END, sentence_words
from suffice.errors import ConfigError, DataError

CARDS = [(f"I see {i}!", f"¡Veo {i}!") for i in range(30)] + [("I see 3.", "Lo veo 3")]
DOCS = [
    {"en": f"Please call f{i}() now", "es": f"Llame a «f{i}()»", "file": "a.po"} for i in range(20)
]


def put(home: Path, monkeypatch, name: str, content: bytes) -> None:
    file = replace(getattr(translation, name), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(translation, name, file)
    at = home / file.path
    at.parent.mkdir(parents=True)
    at.write_bytes(lzma.compress(content))


@pytest.fixture
def small(home: Path, monkeypatch) -> Path:
    """A cache that holds 31 cards and 20 paragraphs under the names of the real files."""
    put(home, monkeypatch, "ANKI", "".join(f"{a}\t{b}\n" for a, b in CARDS).encode())
    text = "".join(json.dumps(row) + "\n" for row in DOCS)
    put(home, monkeypatch, "PYTHON_DOCS", text.encode())
    return home


def message(data, split) -> list[tuple[str, str, str]]:
    """The source, the target so far and what is asked of each row, in words."""
    english, spanish = data.source_vocabulary, data.vocabulary
    return [
        (
            " ".join(english[i] for i in split.source[row][split.source_valid[row]]),
            " ".join(spanish[i] for i in split.inputs[row][split.valid[row]]),
            " ".join(spanish[i] for i in split.labels[row] if i != IGNORE_INDEX),
        )
        for row in range(len(split))
    ]


def test_labels_are_the_next_words_and_the_end(small: Path):
    data = load("translation_es", length=5, held_out=5)
    rows = {row[0]: row for row in message(data, data.train)}
    assert len(data.train) + len(data.validation) + len(data.test) == len(CARDS) + len(DOCS)
    for source, target, labelled in rows.values():
        words = target.split()
        assert words[0] == "<start>"
        assert labelled.split() == [*words[1:], END]
        number = source.split()[-1] if source.startswith("i") else source.split()[2]
        assert number in words
    assert data.train.labels.shape == data.train.inputs.shape == data.train.source.shape
    assert data.num_classes == len(data.vocabulary)
    assert data.scores == ("bleu", "perplexity")
    padding = ~data.train.valid
    assert (data.train.labels[padding] == IGNORE_INDEX).all()
    assert (data.train.inputs[padding] == 0).all()


def test_no_english_side_is_in_two_parts(small: Path):
    data = load("translation_es", length=5, held_out=5, vocabulary_size=1000)
    sides = {}
    for part in ("train", "validation", "test"):
        split = getattr(data, part)
        for row in split.source[:, :].tolist():
            sides.setdefault(part, set()).add(tuple(row))
    keys = sorted(
        {" ".join(sentence_words(a)) for a, _ in CARDS}
        | {" ".join(sentence_words(row["en"])) for row in DOCS},
        key=lambda key: hashlib.sha1(key.encode()).digest(),
    )
    english = ["i", "see", "call", "now"]
    english_words = {part: {row[0] for row in message(data, getattr(data, part))} for part in sides}
    known = set(data.source_vocabulary)
    blurred = [" ".join(w if w in known else "<unknown>" for w in key.split()) for key in keys]
    assert english_words["test"] == set(blurred[:5])
    assert english_words["validation"] == set(blurred[5:10])
    assert english_words["train"] == set(keys[10:])
    assert set(english) <= known


def test_sentences_that_only_differ_in_marks_stay_together(small: Path):
    data = load("translation_es", length=5, held_out=5)
    parts = [
        part
        for part in ("train", "validation", "test")
        for source, target, _ in message(data, getattr(data, part))
        if target.split()[1] in ("veo", "lo") and source.endswith((" 3", "<unknown>"))
    ]
    lengths = [len(getattr(data, part)) for part in ("validation", "test")]
    assert parts
    assert sum(lengths) in (10, 11)


def test_long_pairs_are_left_out_and_rows_are_drawn(small: Path):
    short = load("translation_es", length=4, held_out=3)
    assert all(len(row[1].split()) <= 4 for row in message(short, short.train))
    assert len(short.train) + len(short.test) + len(short.validation) == 31
    few = load("translation_es", length=5, held_out=5, rows=9)
    full = load("translation_es", length=5, held_out=5)
    assert len(few.train) == 9
    assert {row[0] for row in message(few, few.train)} < {
        row[0] for row in message(full, full.train)
    }
    assert few.train.source_valid.dtype == torch.bool
    assert "9 pairs below 5 words" in few.title


def test_the_users_pairs_replace_the_documentation(small: Path, tmp_path: Path):
    (tmp_path / "mine.en").write_text("\n".join(f"Mr. President {i}" for i in range(12)) + "\n")
    (tmp_path / "mine.es").write_text("\n".join(f"Señor presidente {i}" for i in range(12)) + "\n")
    data = load("translation_es", length=5, held_out=5, path=str(tmp_path / "mine"))
    assert "señor" in data.vocabulary
    assert "llame" not in data.vocabulary
    assert "veo" in data.vocabulary
    assert "the user's own" in data.source


def test_users_files_that_do_not_fit_are_refused(small: Path, tmp_path: Path):
    mine = str(tmp_path / "mine")
    with pytest.raises(DataError, match=r"cannot read .*mine\.en"):
        load("translation_es", path=mine)
    (tmp_path / "mine.en").write_text("a\nb\n")
    (tmp_path / "mine.es").write_text("a\n")
    with pytest.raises(DataError, match=r"mine\.es.*line 2"):
        load("translation_es", path=mine)
    (tmp_path / "mine.es").write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"line 2.*mine\.en"):
        load("translation_es", path=mine)


def test_options_are_checked_before_a_file_is_read(home: Path):
    with pytest.raises(ConfigError, match="translation_es: length=1"):
        load("translation_es", length=1)
    with pytest.raises(ConfigError, match="held_out=0.*rows=0"):
        load("translation_es", held_out=0, rows=0)
    with pytest.raises(ConfigError, match="vocabulary_size=3"):
        load("translation_es", vocabulary_size=3)


def test_too_few_pairs_are_refused(small: Path):
    with pytest.raises(DataError, match="different English sides, of which 30 are for validation"):
        load("translation_es", length=5, held_out=30)


@pytest.mark.skipif(not os.environ.get("SUFFICE_DATA"), reason="SUFFICE_DATA is not set")
def test_the_real_files():
    data = load("translation_es", length=6, vocabulary_size=500, held_out=100, rows=1000)
    assert (len(data.train), len(data.vocabulary)) == (1000, 500)
    assert {len(data.test), len(data.validation)} <= set(range(100, 140))
