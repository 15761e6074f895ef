"""HellaSwag of language models: records that belong to weights, laid out by scorer."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from papers.tests.test_reproduce import asked
from suffice.errors import ConfigError
from suffice_papers import cli as reproduce
from suffice_papers.hellaswag import Scored, published_scores, scores_csv, scores_sheet

ONE = Scored(
    mechanism="efficient",
    scale="small",
    corpus="own.txt",
    steps=100,
    parameters=15_000_000,
    validation_loss=7.25,
    weights="",
    items=300,
    of=10_042,
    scores={"acc": 0.25, "acc_norm": 0.26, "sum": 0.245, "average": 0.3},
    errors={"acc": 0.025, "acc_norm": 0.02, "sum": None, "average": 0.01},
    seconds=90.0,
    machine={"cpu": "Some CPU", "cores": 2, "threads": 1, "gpu": None},
)


def test_a_sheet_names_the_scorers_the_items_and_the_scale():
    sheet = scores_sheet([ONE], "small")
    assert sheet.title.startswith("hellaswag: GPT-2 in small, 15M parameters")
    assert sheet.columns[3:] == (
        "acc, harness",
        "acc_norm, harness",
        "sum, build-nanogpt",
        "average, build-nanogpt",
    )
    standard, optimised, efficient = sheet.lines
    assert set(standard.cells[1:]) == set(optimised.cells[1:]) == {""}
    assert efficient.cells[1:3] == ("15,000,000", "7.25")
    assert efficient.cells[3:] == ("25.00 ± 2.50", "26.00 ± 2.00", "24.50", "30.00 ± 1.00")
    assert "300 of 10,042 items, trained on own.txt for 100 steps; answers in 1.5" in sheet.caption
    assert "124M" in scores_sheet([], "paper").title


def test_lines_hold_every_score():
    lines = list(csv.DictReader(io.StringIO(scores_csv([ONE]))))
    assert [line["scorer"] for line in lines] == list(ONE.scores)
    assert (lines[0]["value"], lines[0]["standard_error"]) == ("0.25", "0.025")
    assert (lines[2]["standard_error"], lines[2]["items"]) == ("", "300")


def test_the_stored_scores_are_laid_out(capsys):
    scored = published_scores()
    assert {one.mechanism for one in scored} == {"standard", "optimised", "efficient"}
    reproduce.answer(asked(table="hellaswag"), Console(file=io.StringIO()))
    assert f"{100 * scored[0].scores['acc']:.2f}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--run"):
        reproduce.answer(asked(table="hellaswag", run=True), Console(file=io.StringIO()))


def test_tables_that_begin_as_typed_complete():
    assert reproduce.complete_tables("fl") == ["flops"]
    tables = ["v2-imagenet", "v2-imagenet-equal", "v2-imdb"]
    assert sorted(reproduce.complete_tables("v2-im")) == tables
