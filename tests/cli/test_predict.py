"""`suffice predict`: what is read, what is printed, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from suffice import load
from suffice.loading.predictions import PredictionRequest, _writer, answer
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
    assert "warning" not in result.stderr
    winner = model / "winner.json"
    winner.write_text(json.dumps({**json.loads(winner.read_text()), "warning": "not shown"}))
    warned = suffice("predict", model, table)
    assert (warned.stdout, warned.exit_code) == (result.stdout, 0)
    assert "warning: not shown\n" in warned.stderr
    assert "warning" not in suffice("predict", model / "models/standard-h2-s0", table).stderr


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_and_standard_input_are_read_in_the_encoding_that_is_named(
    suffice, model, tmp_path, monkeypatch, encoding
):
    content = "review\nnaïve, good\n".encode(encoding)
    (tmp_path / "new.tsv").write_bytes(content.replace(b",", b";"))
    options = ("--encoding", encoding)
    of_file = suffice("predict", model, tmp_path / "new.tsv", *options)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("naïve".encode(encoding))))
    of_lines = suffice("predict", model, "-", *options)
    assert rows_of(of_file.stdout)[0]["review"] == "naïve; good"
    assert rows_of(of_lines.stdout)[0]["text"] == "naïve"


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


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("text", (b"good\n", b"bad\n", b"dress\n")),
        ("csv", (b"n,review\n1,good\n", b"2,bad\n", b"3,dress\n")),
        ("jsonl", (b'{"review": "good"}\n', b'{"review": "bad"}\n', b'{"review": "dress"}\n')),
    ],
)
def test_each_line_is_answered_before_the_next_one_comes(model, monkeypatch, form, lines):
    out, written = io.StringIO(), []

    def stream():
        for line in lines:
            written.append(len(out.getvalue().splitlines()) - (form != "jsonl" and bool(written)))
            yield from line.splitlines(keepends=True)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream()))
    monkeypatch.setattr(sys, "stdout", out)
    answer(load(model), PredictionRequest(names=("-",), form=form))
    assert written == [0, 1, 2]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_is_read_as_soon_as_it_is_written(tmp_path, as_json):
    with open(tmp_path / "out", "w", encoding="utf-8") as stream:
        _writer(stream, as_json=as_json)({"text": "a"}, {"prediction": "yes"})
        assert "yes" in (tmp_path / "out").read_text()


def test_only_standard_input_has_a_format():
    assert PredictionRequest(names=("-",), form="jsonl").wants_json
    assert not PredictionRequest(names=("a.csv",), form="jsonl").wants_json


def test_rows_of_other_classes_are_named_and_not_counted(suffice, model, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("review,liked\ngood,perhaps\nbad,\ngood,yes\ngood,no\n ,\n")
    result = suffice("predict", model, path)
    assert "accuracy: 50.0% of 2 rows with a class in 'liked'" in result.stderr
    assert "may include rows the model was trained on" in result.stderr
    assert "not counted: 1 rows" in result.stderr
    assert "without a text: 1 rows" in result.stderr


@pytest.mark.parametrize("count", [12, 13])
def test_up_to_twelve_classes_have_columns(suffice, tmp_path, count):
    sizes = {"vocabulary_size": 6, "length": 8, "num_classes": count, "d_model": 8, "depth": 1}
    network = ClassifierConfig(**sizes, mlp_width=8).build(preset("standard", 8, 2))
    classes = [f"c{number}" for number in range(count)]
    folder.save(tmp_path / "many", network, Words(WORDS, 8), classes=classes)
    (row,) = rows_of(suffice("predict", tmp_path / "many", "--text", "good").stdout)
    shares = [row[f"p({name})"] for name in classes if f"p({name})" in row]
    assert len(shares) == (12 if count == 12 else 0)


def test_the_column_of_the_training_comes_before_that_named_text(suffice, model, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("text,review\nbad,good good good\n")
    words = ("predict", model)
    read = rows_of(suffice(*words, path).stdout)[0]
    alone = rows_of(suffice(*words, "--text", "good good good").stdout)[0]
    other = rows_of(suffice(*words, "--text", "bad").stdout)[0]
    assert read["p(yes)"] == alone["p(yes)"] != other["p(yes)"]


LOST = {
    "an answer": ("n.csv", "review,prediction\ngood,x\n", (), "'prediction'"),
    "a share": ("n.jsonl", '{"review": "good", "p(no)": 1}\n', (), "'p(no)'"),
    "a double": ("n.csv", "review,id,id\ngood,1,2\n", (), "two columns 'id'"),
    "a later key": (
        "n.jsonl", '{"review": "good"}\n{"review": "bad", "id": 3}\n', ("--out", "o.csv"), "'id'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_no_cell_of_the_input_is_lost(suffice, model, tmp_path, case):
    name, content, options, match = LOST[case]
    (tmp_path / name).write_text(content)
    result = suffice("predict", model, tmp_path / name, *options)
    assert result.exit_code == 2
    assert match in result.message
    assert not (tmp_path / "o.csv").exists()


def test_one_text_and_a_model_by_its_short_name(suffice, model):
    result = suffice("predict", model / "standard-h2-s0", "--text", "good")
    assert rows_of(result.stdout)[0]["text"] == "good"


def test_images_are_answered_one_by_one_and_by_folder(suffice, tmp_path):
    sizes = {"image_size": 4, "patch_size": 2, "num_classes": 2, "d_model": 8, "depth": 1}
    network = ViTConfig(**sizes, mlp_width=8, channels=3).build(preset("standard", 8, 2))
    size = {"channels": 3, "height": 4, "width": 4}
    preparation = {**size, "mean": 0.0, "std": 255.0, "side": None, "white": 255.0}
    folder.save(tmp_path / "m", network, classes=["cat", "dog"], preparation=preparation)
    (tmp_path / "more" / "deep").mkdir(parents=True)
    for name in ("a.PNG", "more/b.png", "more/deep/c.JPG"):
        Image.new("RGB", (6, 5), (200, 10, 30)).save(tmp_path / name)
    (tmp_path / "more" / "notes.txt").write_text("none")
    result = suffice("predict", tmp_path / "m", tmp_path / "a.PNG", tmp_path / "more")
    rows = rows_of(result.stdout)
    assert [row["file"].rpartition("/")[2] for row in rows] == ["a.PNG", "b.png", "c.JPG"]
    assert len({row["p(cat)"] for row in rows[:2]}) == 1
    refused = suffice("predict", tmp_path / "m", tmp_path / "more" / "notes.txt")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "does not end in .jpeg, .jpg, .png" in refused.message


def test_what_cannot_be_answered_is_refused(suffice, model, table, tmp_path):
    (tmp_path / "one.csv").write_text("review\ngood\n")
    for words, match in (
        ((model,), "give files, - for standard input, or --text"),
        ((model, table, "--text", "a"), "give files, - for standard input, or --text"),
        ((model, table, "--column", "text"), "has no column 'text', only id, review, liked"),
        ((model, tmp_path / "one.csv", "--column", "text"), "has no column 'text', only review"),
        ((model, tmp_path / "a.png"), "the model reads texts"),
        ((model, "-", "--as", "xml"), "--as xml: give csv, jsonl or text"),
        ((tmp_path / "absent", table), "no such file or folder"),
    ):
        result = suffice("predict", *words)
        assert result.exit_code == 2
        assert match in result.message
