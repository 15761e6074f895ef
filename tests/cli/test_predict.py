"""`suffice predict`: what is read, what is printed, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest
import torch
from PIL import Image

from suffice.models import ClassifierConfig, ViTConfig, folder
from suffice.presets import preset
from suffice.text import Words

WORDS = ("<pad>", "<start>", "<unknown>", "good", "bad", "dress")


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 6, "length": 8, "num_classes": 2, "d_model": 8, "depth": 1}
    network = ClassifierConfig(**sizes, mlp_width=8).build(preset("standard", 8, 2))
    facts = {"classes": ["no", "yes"], "columns": ["review", "liked"]}
    folder.save(tmp_path / "run" / "models" / "standard-h2-s0", network, Words(WORDS, 8), **facts)
    (tmp_path / "run" / "winner.json").write_text('{"model": "models/standard-h2-s0"}')
    return tmp_path / "run"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("id;review;liked\n1;a good dress;yes\n2;bad;no\n3;good, bad;yes\n")
    return path


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_table_is_printed_with_its_predictions(suffice, model, table):
    result = suffice("predict", model, table)
    assert result.exit_code == 0
    rows = rows_of(result.stdout)
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    for row in rows:
        shares = {name: float(row[f"p({name})"]) for name in ("no", "yes")}
        assert row["prediction"] == max(shares, key=shares.get)
        assert float(row["probability"]) == max(shares.values())
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
    right = sum(row["prediction"] == row["liked"] for row in rows)
    assert f"accuracy: {right / 3:.1%} of 3 rows with a class in 'liked'" in result.stderr
    assert "model: " in result.stderr


def test_batches_change_nothing(suffice, model, table):
    one, all_at_once = (suffice("predict", model, table, "--batch", n).stdout for n in (1, 64))
    for row, other in zip(rows_of(one), rows_of(all_at_once), strict=True):
        assert float(row["probability"]) == pytest.approx(float(other["probability"]), abs=2e-6)


def test_lines_of_json_are_answered_as_such(suffice, model, tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text('{"review": "good", "n": 1}\n{"review": null}\n')
    out = tmp_path / "out.jsonl"
    assert suffice("predict", model, path, "--out", out).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [list(row)[:2] for row in rows] == [["review", "n"], ["review", "prediction"]]
    assert rows[0]["prediction"] in ("no", "yes")


def test_standard_input_is_answered_line_by_line(suffice, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"good\nbad, bad\n")))
    result = suffice("predict", model, "-")
    assert [row["text"] for row in rows_of(result.stdout)] == ["good", "bad, bad"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'a,b\n"good, good",1\n')))
    result = suffice("predict", model, "-", "--as", "csv", "--column", "a", "--json")
    assert json.loads(result.stdout)["b"] == "1"


def test_one_text_and_a_model_by_its_short_name(suffice, model):
    result = suffice("predict", model / "standard-h2-s0", "--text", "good")
    assert rows_of(result.stdout)[0]["text"] == "good"


def test_images_are_answered_one_by_one_and_by_folder(suffice, tmp_path):
    sizes = {"image_size": 4, "patch_size": 2, "num_classes": 2, "d_model": 8, "depth": 1}
    network = ViTConfig(**sizes, mlp_width=8, channels=3).build(preset("standard", 8, 2))
    size = {"channels": 3, "height": 4, "width": 4}
    preparation = {**size, "mean": 0.0, "std": 255.0, "side": None, "white": 255.0}
    folder.save(tmp_path / "m", network, classes=["cat", "dog"], preparation=preparation)
    (tmp_path / "more").mkdir()
    for name in ("a.png", "more/b.png", "more/c.jpg"):
        Image.new("RGB", (6, 5), (200, 10, 30)).save(tmp_path / name)
    (tmp_path / "more" / "notes.txt").write_text("none")
    result = suffice("predict", tmp_path / "m", tmp_path / "a.png", tmp_path / "more")
    rows = rows_of(result.stdout)
    assert [row["file"].rpartition("/")[2] for row in rows] == ["a.png", "b.png", "c.jpg"]
    assert len({row["p(cat)"] for row in rows[:2]}) == 1
    refused = suffice("predict", tmp_path / "m", tmp_path / "more" / "notes.txt")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "does not end in .jpeg, .jpg, .png" in refused.message


def test_what_cannot_be_answered_is_refused(suffice, model, table, tmp_path):
    for words, match in (
        ((model,), "give files, - for standard input, or --text"),
        ((model, table, "--text", "a"), "give files, - for standard input, or --text"),
        ((model, table, "--column", "text"), "has no columns 'text' but id, review, liked"),
        ((model, tmp_path / "a.png"), "the model reads texts"),
        ((model, "-", "--as", "xml"), "--as xml: give csv, jsonl or text"),
        ((tmp_path / "absent", table), "does not exist"),
    ):
        result = suffice("predict", *words)
        assert result.exit_code == 2
        assert match in result.message
