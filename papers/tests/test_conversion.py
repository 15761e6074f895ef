"""The table of conversions: its rows, its files, and what it says of them."""

from __future__ import annotations

import io
import json
import lzma
import sys
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from papers.tests.tiny import RESULTS
from suffice.convert.certificate import LossChange
from suffice.convert.heal import Healing
from suffice.convert.sources import Source
from suffice.errors import DataError
from suffice.models import folder as models
from suffice.text import Documents
from suffice_papers import conversion
from suffice_papers import conversion as rows_module
from suffice_papers.conversion import (
    ConversionRow,
    Conversions,
    Subject,
    finished,
    lines,
    publish,
    published,
    run,
    sheet,
    to_csv,
    wanted,
)
from tests.convert.heal.small import LETTERS, documents, student, teacher

MACHINE = {"cpu": "Some CPU", "cores": 2, "threads": 1, "gpu": None}
ON = {"machine": MACHINE, "versions": {}, "commit": None}


def change(size, *, width=0.1):
    return LossChange(
        before=1.5,
        after=1.5 + size,
        change=size,
        low=size - width,
        high=size + width,
        rows=4,
        tokens=64,
    )


WHOLE = ConversionRow(
    subject="stories260K",
    target="gqa:2",
    state=(64, 32),
    parameters=(61_440, 51_200),
    naive=change(2.0),
    closed=change(0.5),
    healed=change(0.25),
    control=replace(change(-0.125), low=None, high=None),
    against_control=change(0.375),
    budget=5.0,
    minutes=(5.0, 3.0),
    steps=700,
    tokens=9_000,
    **ON,
)
REFUSED = ConversionRow(
    subject="stories260K", target="latent:32", refused="Rope turns each head.", **ON
)
OTHER = replace(WHOLE, subject="shakespeare_char", minutes=(5.0, 2.04))
FOUND = Conversions(rows=(WHOLE, REFUSED, OTHER))


@pytest.fixture
def results(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").touch()

    monkeypatch.setattr("suffice_papers.published.FOLDER", tmp_path / RESULTS)
    return tmp_path


def parts(*names):
    return {
        name: Documents(name=name, read=lambda seed=seed: documents(12, seed))
        for seed, name in enumerate(names)
    }


@pytest.fixture
def tiny(monkeypatch):
    opened = []

    def build(folder):
        opened.append(folder)
        source = Source(model=teacher(), kind="suffice", tokenizer=LETTERS)
        return Subject(source=source, **parts("train", "validation", "held_out", "calibration"))

    module = sys.modules["suffice_papers.conversion"]
    monkeypatch.setattr(module, "SUBJECTS", {"tiny": build})
    short = {"steps": 4, "batch_size": 4, "evaluate_every": 2, "evaluation_batches": 2}
    monkeypatch.setattr(
        module, "Healing", lambda **given: Healing(**{**given, **short, "minutes": None})
    )
    return opened


def test_a_row_is_converted_healed_and_kept(tiny, results):
    console = Console(file=io.StringIO(), width=200)
    keys = [("tiny", "mqa"), ("tiny", "gqa:3")]
    run(results, keys, minutes=0.5, console=console)
    found = finished(results, keys)
    row, refused = found.rows
    assert (row.key, row.state, row.steps, row.tokens) == (keys[0], (32, 8), 4, 256)
    assert row.parameters[0] > row.parameters[1]
    assert row.naive.before == row.closed.before == row.control.before
    assert row.naive.change > row.closed.change
    assert row.against_control.before == row.control.after
    assert row.against_control.after == row.healed.after
    assert row.budget == 0.5
    assert refused.refused.startswith("blocks.0.attention: num_kv_heads=3 does not divide")
    assert len(tiny) == 1
    run(results, keys, minutes=0.5, console=console, quiet=True)
    assert len(tiny) == 1
    assert finished(results, keys) == found


def test_no_row_is_begun_after_the_time(tiny, results):
    run(results, [("tiny", "mqa")], limit=0.0, console=Console(file=io.StringIO()))
    assert tiny == []
    assert finished(results, [("tiny", "mqa")]).rows == ()


def test_published_rows_come_back_and_the_folders_come_first(results):
    assert published() == Conversions(rows=())
    assert publish(FOUND).is_file()
    assert published() == FOUND
    keys = [row.key for row in FOUND.rows]
    assert finished(results / "none", keys) == FOUND
    newer = replace(WHOLE, steps=900)
    path = rows_module.place(results, *WHOLE.key)
    path.parent.mkdir()
    path.write_text(json.dumps(asdict(newer)))
    assert finished(results, keys).rows == (newer, REFUSED, OTHER)
    path.write_text("{")
    with pytest.raises(DataError, match="Delete it to convert again"):
        finished(results, keys)


def test_the_sheet_has_every_change_with_its_interval():
    made = sheet(FOUND)
    first, second, third = made.lines
    assert first.cells[2] == "64 -> 32"
    assert first.cells[3] == "+2.0000 ± 0.1000"
    assert first.cells[6] == "-0.1250"
    assert first.cells[8] == "700"
    assert len(second.cells) == len(first.cells) == len(made.columns)
    assert "refused" in second.cells
    assert third.starts_group
    assert not second.starts_group
    for told in (
        "stories260K: loss 1.5000, 64 tokens in 4 rows, 5.0 minutes of healing in each row and",
        "stories260K cannot become latent:32: Rope turns each head.",
        "Ours on Some CPU (2 cores, 1 thread each).",
        "Not run: stories260K to mqa",
    ):
        assert told in made.caption
    only = Conversions(rows=(REFUSED,))
    assert "minutes of healing" not in sheet(only).caption


def test_it_is_written_in_markdown_and_csv(results):
    assert lines(Conversions(rows=())) == ["Nothing is published yet."]
    told = lines(FOUND)
    assert told[0].startswith("| model | attention |")
    assert told[2].startswith("| stories260K | gqa:2 | 64 -> 32 |")
    assert all(line.count("|") == told[0].count("|") for line in told[:5])
    written = to_csv(FOUND).splitlines()
    assert len(written) == 1 + 5 + 5
    assert written[1] == "stories260K,gqa:2,700,5.0,naive,2.0,1.9,2.1,1.5,3.5,4,64"
    assert ",control,-0.125,,,1.5," in written[4]


def novels(tmp_path, monkeypatch, count=23):
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    path = tmp_path / "lm" / "eltec_eng_novels" / "novels_60.jsonl.xz"
    path.parent.mkdir(parents=True)
    texts = [f"{number:03}" + "abcdefg " * 20_000 for number in range(count)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    path.write_bytes(lzma.compress(rows.encode(), preset=0))


def test_the_parts_of_the_novels_share_no_book(tmp_path, monkeypatch):
    novels(tmp_path, monkeypatch)
    monkeypatch.setattr(conversion, "BEGIN", 0.0)
    monkeypatch.setattr(conversion, "open_source", lambda path: path)
    (tmp_path / "models" / "stories260K").mkdir(parents=True)
    with pytest.raises(DataError, match=r"there is no .*stories260K.bin; put it there, or below"):
        conversion.stories260k(tmp_path)
    (tmp_path / "models" / "stories260K" / "stories260K.bin").touch()
    made = conversion.stories260k(tmp_path)
    books = {
        name: [text[:3] for text in getattr(made, name)]
        for name in ("calibration", "train", "validation", "held_out")
    }
    assert books["calibration"] == ["000", "010", "020"]
    assert books["held_out"] == ["002", "003", "012", "013", "022"]
    assert sorted(sum(books.values(), [])) == [f"{number:03}" for number in range(23)]
    assert {len(text) for text in made.held_out} == {4_000}


def test_the_model_that_is_trained_here_must_be_there(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="train it first: suffice train --recipe shakespeare_char"):
        conversion.shakespeare_char(tmp_path)
    models.save(tmp_path / "shakespeare_char", student("mqa"), LETTERS)
    whole = parts("train", "validation")
    monkeypatch.setattr(conversion, "corpus", lambda name: type("C", (), whole))
    made = conversion.shakespeare_char(tmp_path)
    first, rest = next(iter(made.calibration)), next(iter(made.train))
    assert first + rest == next(iter(whole["train"]))
    assert len(first) == int(0.15 * len(first + rest))
    assert list(made.validation) + list(made.held_out) == list(whole["validation"])
    assert wanted()[-1] == ("shakespeare_char", "window:16+sinks:4")
