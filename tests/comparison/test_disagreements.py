"""Rows on which mechanisms disagree, with what they hold."""

from __future__ import annotations

import base64
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from suffice.comparison.answers import Answers
from suffice.comparison.disagreements import (
    LONGEST,
    MOST,
    disagreements,
    most_different,
    read_disagreements,
    thumbnail,
    write_disagreements,
)
from suffice.comparison.report import write_report
from suffice.comparison.verdict import judge
from suffice.data import Dataset, Split, load
from suffice.data.survey import survey
from suffice.errors import DataError

from .synthetic import make_cell, make_results

LABELS = [0, 1, 2, 2, 1, 0]


def answers(predicted):
    predicted = np.asarray(predicted, dtype=np.int64)
    label = np.asarray(LABELS, dtype=np.int64)
    right = (predicted == label).astype(float)
    return Answers(
        label=label,
        predicted=predicted,
        right=right,
        asked=np.ones(len(label)),
        loss=1.0 - right,
        confidence=np.full(len(label), 0.5),
    )


def texts(labels, first=0):
    rows = torch.arange(first, first + len(labels))[:, None].expand(-1, 4).contiguous()
    return Split(rows, torch.tensor(labels))


@pytest.fixture
def dataset():
    return Dataset(
        name="mine",
        title="mine",
        source="",
        train=texts(LABELS),
        validation=texts(LABELS, first=100),
        test=texts(LABELS, first=200),
        num_classes=3,
        class_names=("low", "middle", "high"),
        test_texts=("a", "b", "<script>alert(1)</script>", "d", "e", "f" * 2 * LONGEST),
    )


@pytest.fixture
def results(dataset):
    given = {
        ("standard", 0): [0, 1, 0, 2, 1, 0],
        ("standard", 1): [0, 1, 0, 2, 0, 0],
        ("efficient", 0): [0, 1, 2, 2, 1, 2],
        ("efficient", 1): [0, 1, 2, 2, 1, 1],
    }
    rows = {(name, 4, seed): answers(values) for (name, seed), values in given.items()}
    cells = [make_cell(name, seed=seed) for name, seed in given]
    return make_results(cells, rows=rows, data=survey(dataset))


def test_rows_come_with_text_truth_and_each_answer(results, dataset):
    first, second, third = disagreements(results, dataset)
    # row 2: efficient is right twice, standard never; row 5 the reverse; row 4: twice, once
    assert [first.row, second.row, third.row] == [2, 5, 4]
    assert (first.text, first.truth, first.picture) == (dataset.test_texts[2], "high", None)
    assert first.answers == {"standard (4 heads)": {"low": 2}, "efficient (4 heads)": {"high": 2}}
    assert second.answers["efficient (4 heads)"] == {"high": 1, "middle": 1}
    assert len(second.text) == LONGEST + 2


def test_rows_are_read_as_they_were_written(results, dataset, tmp_path):
    shown = disagreements(results, dataset)
    write_disagreements(tmp_path, shown)
    assert read_disagreements(tmp_path) == shown
    assert read_disagreements(tmp_path / "absent") == ()


def test_without_answers_there_are_none(results, dataset):
    assert disagreements(replace(results, rows={}), dataset) == ()


def test_a_mechanism_is_held_against_the_baseline_with_as_many_heads(results, dataset):
    """With 1 head both are right on the same rows, all but one."""
    rows = {(name, 1, 0): answers(LABELS) for name in ("standard", "efficient")}
    rows["efficient", 1, 0] = answers([0, 2, *LABELS[2:]])
    cells = [make_cell(name, 1) for name in ("standard", "efficient")]
    both = replace(results, cells=(*results.cells, *cells), rows={**results.rows, **rows})
    shown = disagreements(both, dataset)
    assert [one.row for one in shown] == [1, 2, 5, 4]
    assert list(shown[0].answers)[:2] == ["standard (1 head)", "efficient (1 head)"]
    assert shown[0].answers["efficient (1 head)"] == {"high": 1}
    without = {key: rows for key, rows in both.rows.items() if key != ("standard", 4, 1)}
    assert [one.row for one in disagreements(replace(both, rows=without), dataset)] == [1]


def test_few_rows_of_each_mechanism_and_few_in_all():
    """A mechanism shows the 2 rows that it gains and the 2 that it loses; 8 in all."""
    wrong = [(label + 1) % 3 for label in LABELS]
    one = {("standard", 4): [answers(wrong)], ("efficient", 4): [answers(LABELS)]}
    assert most_different(one, "standard") == [0, 1]
    assert most_different(one, "efficient") == [0, 1]
    label = np.zeros(20, dtype=np.int64)
    of = replace(
        answers(LABELS),
        **{
            name: np.zeros(20)
            for name in ("label", "predicted", "right", "asked", "loss", "confidence")
        },
    )
    many = {("standard", 4): [of]}
    for number in range(5):
        right = np.isin(np.arange(20), [4 * number, 4 * number + 1, 4 * number + 2]).astype(float)
        many[f"m{number}", 4] = [replace(of, label=label, right=right)]
    rows = most_different(many, "standard")
    assert len(rows) == MOST
    assert rows == [0, 1, 4, 5, 8, 9, 12, 13]


def test_a_text_of_the_longest_length_is_whole(results, dataset):
    texts = [*dataset.test_texts[:2], "c" * LONGEST, *dataset.test_texts[3:]]
    first, *_ = disagreements(results, replace(dataset, test_texts=tuple(texts)))
    assert first.text == "c" * LONGEST


def test_the_report_shows_the_rows_and_escapes_them(results, dataset, tmp_path):
    write_disagreements(tmp_path, disagreements(results, dataset))
    page = write_report(results, judge(results), tmp_path).read_text("utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "<strong>high</strong> (2)" in page


def test_texts_must_be_one_a_row(dataset):
    with pytest.raises(DataError, match="2 texts for 6"):
        replace(dataset, test_texts=("a", "b"))


def test_a_thumbnail_is_the_picture():
    digits = load("digits")
    image = digits.test.inputs[0]
    address = thumbnail(image, digits.white)
    head, _, content = address.partition(",")
    assert head == "data:image/png;base64"
    pixels = np.asarray(Image.open(BytesIO(base64.b64decode(content))))
    expected = image[0].numpy().astype(float) * 255 / digits.white
    assert np.abs(pixels - expected).max() <= 1
    colours = torch.zeros(3, 300, 200)
    colours[0] = 1.0
    small = Image.open(BytesIO(base64.b64decode(thumbnail(colours, 1.0).partition(",")[2])))
    assert (small.mode, max(small.size), small.getpixel((5, 5))) == ("RGB", 128, (255, 0, 0))
