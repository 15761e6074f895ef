"""Tasks are left out, and the adviser is held to what it would have said."""

from __future__ import annotations

import json

import pytest

from suffice.advise import evidence as module
from suffice.advise.trials import NONE, coverages, trials
from tests.measure.synthetic import from_accuracies

STANDARD = [0.900, 0.902, 0.898, 0.901, 0.899]
TABLES = {
    "atlas_imdb_300k": {"mqa": 0.0, "linear": -0.2},
    "atlas_amazon_300k": {"mqa": 0.001, "linear": -0.001},
    "atlas_womens_clothing_300k": {"mqa": -0.001, "linear": 0.0},
}


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
        path.write_text(json.dumps({"results": results.to_json()}))
    monkeypatch.setattr(module, "_packaged", lambda: sorted(tmp_path.glob("*.json")))


@pytest.mark.usefixtures("package")
def test_what_loses_elsewhere_is_not_named():
    found = {(one.task, one.margin): one for one in trials((0.01,))}
    for task in ("amazon", "womens_clothing"):  # linear loses on imdb
        one = found[task, 0.01]
        assert (one.named, one.by, one.outcome) == ("mqa", "a comparison", "suffices")
    wrong = found["imdb", 0.01]  # where linear suffices on both others, which is no proof
    assert (wrong.named, wrong.outcome) == ("linear", "does not suffice")
    assert all(one.tasks == 2 for one in found.values())


@pytest.mark.usefixtures("package")
def test_coverage_counts_what_is_inside():
    found = {one.task: one for one in coverages()}
    assert all((one.compositions, one.tasks) == (2, 2) for one in found.values())
    assert all(one.covered <= one.predicted == 2 for one in found.values())


def test_one_table_names_nothing(tmp_path, monkeypatch):
    accuracies = {"standard@4": STANDARD, "mqa@4": STANDARD}
    results = from_accuracies(accuracies, recipe="atlas_imdb_300k")
    (tmp_path / "x.json").write_text(json.dumps({"results": results.to_json()}))
    monkeypatch.setattr(module, "_packaged", lambda: [tmp_path / "x.json"])
    assert {one.outcome for one in trials()} == {NONE}
    assert [one.predicted for one in coverages()] == [0]


def test_nine_of_ten_that_are_decided_are_right():
    found = trials()
    decided = [one for one in found if one.outcome != "undecided"]
    right = sum(one.outcome in ("suffices", NONE) for one in decided)
    assert right >= 0.9 * len(decided)
