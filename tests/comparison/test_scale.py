"""A small comparison says that it is one, wherever it is shown."""

from __future__ import annotations

import pytest

from suffice.comparison import judge, verdict_record
from suffice.comparison.report.page import page
from suffice.comparison.report.plots import draw_figures
from suffice.comparison.report.tables import tables
from suffice.comparison.results import Results
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import SMALL

from .synthetic import make_cell, make_results, realistic

SMALL_TITLE = f"MNIST, 8,000 rows; {SMALL}"


@pytest.fixture(scope="module")
def small() -> Results:
    return realistic(heads=(1, 4), seeds=3, epochs=3, scale="small", title=SMALL_TITLE)


def test_tables_and_the_page_say_it(small):
    verdict = judge(small)
    found = tables(small, verdict)
    assert len(found) == 5
    assert all(sheet.title.endswith(f" ({SMALL})") for sheet in found)
    paper = realistic(heads=(1, 4), seeds=3, epochs=3)
    assert not any(SMALL in sheet.title for sheet in tables(paper, judge(paper)))
    text = page(small, verdict, draw_figures(small, verdict)).replace("&#39;", "'")
    assert f"<li>{SMALL.capitalize()}.</li>" in text
    assert text.count(f" ({SMALL})</h3>") == 5


def test_json_says_it(small):
    assert small.to_json()["scale"] == "small"
    assert Results.from_json(small.to_json(), where="f.json") == small
    assert verdict_record(judge(small), small)["notes"][0] == f"{SMALL.capitalize()}."
    old = make_results([make_cell()]).to_json()
    del old["scale"]
    assert Results.from_json(old, where="f.json").scale == "paper"


def test_an_unknown_scale_is_refused(small):
    with pytest.raises(ConfigError, match="unknown scale 'smal'; did you mean 'small'"):
        make_results([make_cell()], scale="smal")
    with pytest.raises(DataError, match="f.json holds a value that is not legal: unknown scale"):
        Results.from_json({**small.to_json(), "scale": "large"}, where="f.json")
