"""Data are left out, and the adviser is held to what it would have said."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from suffice.measure.advise.evidence import NONE_NAMED, backtests
from tests.measure.synthetic import from_accuracies

STANDARD = [0.900, 0.902, 0.898, 0.901, 0.899]
TABLES = {
    "imdb": {"mqa": 0.0, "linear": -0.2},
    "amazon": {"mqa": 0.001, "linear": -0.001},
    "womens_clothing": {"mqa": -0.001, "linear": 0.0},
}


def published(results) -> str:
    """Return the content of a published file."""
    facts = {"scale": "paper", "threads": 1, "recipe": {}}
    return json.dumps({**facts, "results": results.to_json()})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Let the package have comparisons of known differences, linear the cheapest."""
    for number, (name, differences) in enumerate(TABLES.items()):
        jitter = [0.0, 0.0004, -0.0004, 0.0002, -0.0002]
        accuracies = {"standard@4": STANDARD} | {
            f"{mechanism}@4": [a + by + j for a, j in zip(STANDARD, jitter, strict=True)]
            for mechanism, by in differences.items()
        }
        results = from_accuracies(accuracies, recipe=name)
        path = tmp_path / f"table{number}.json"
        path.write_text(published(results))
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path)


@pytest.mark.usefixtures("package")
def test_what_loses_elsewhere_is_not_named():
    named = {one.data: one for one in backtests((0.01,))}
    for data in ("amazon", "womens_clothing"):  # linear loses on imdb
        assert (named[data].named, named[data].outcome) == ("mqa", "suffices")
    wrong = named["imdb"]  # where linear suffices on both others, which is no proof
    assert (wrong.named, wrong.outcome) == ("linear", "does not suffice")


def test_one_other_table_names_nothing(tmp_path, monkeypatch):
    for name in ("imdb", "amazon"):
        results = from_accuracies({"standard@4": STANDARD, "mqa@4": STANDARD}, recipe=name)
        (tmp_path / f"{name}.json").write_text(published(results))
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path)
    assert {one.outcome for one in backtests()} == {NONE_NAMED}


@pytest.mark.slow
def test_nine_of_ten_that_are_named_and_decided_suffice():
    counts = Counter(one.outcome for one in backtests())
    assert counts["suffices"] >= 9 * counts["does not suffice"]
    assert counts.keys() - {NONE_NAMED}  # something is named
