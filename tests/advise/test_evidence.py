"""What is known of quality: the package's results and the user's."""

from __future__ import annotations

import json

import pytest

from suffice.advise import Composition
from suffice.advise import evidence as module
from suffice.advise.evidence import Library, missing
from suffice.errors import DataError
from suffice.measure.results import write_results
from tests.measure.synthetic import from_accuracies

EFFICIENT = Composition.parse("efficient")
ENOUGH = {"standard": [0.9, 0.91, 0.92], "efficient": [0.9, 0.911, 0.919], "mqa": [0.5, 0.52, 0.5]}


def test_the_package_has_evidence_for_tasks_it_trained():
    evidence = Library("lm").find(EFFICIENT)
    assert [one.source for one in evidence] == ["lm.json"]
    assert evidence[0].seeds == 3
    assert "95% CI [" in evidence[0].sentence
    assert "small scale" in evidence[0].sentence
    sources = list(dict.fromkeys(one.source for one in Library("classify").find(EFFICIENT)))
    assert sources[:2] == ["v2-imdb.json", "v2-amazon.json"]  # the paper's size, most trainings
    assert "v2-womens-clothing.json" in sources[2:]
    assert Library("translate").find(EFFICIENT)
    assert Library("lm").find(Composition.parse("mqa")) == ()
    assert Library("lm").find(Composition.parse("efficient+window:8")) == ()


@pytest.fixture
def alone(monkeypatch):
    """Let the package bring no results along."""
    monkeypatch.setattr(module, "_packaged", list)


@pytest.mark.usefixtures("alone")
def test_user_results_are_judged_at_the_margin(tmp_path):
    write_results(tmp_path / "results.json", from_accuracies(ENOUGH))
    for folder in (str(tmp_path), str(tmp_path / "results.json")):
        library = Library("image", (folder,), 0.02)
        (one,) = library.find(EFFICIENT)
        assert (one.source, one.verdict, one.margin) == (folder, "suffices", 0.02)
        assert one.sentence.startswith("suffices at 2.0 points: ")
        assert library.find(Composition.parse("mqa"))[0].verdict == "does not suffice"
    assert Library("lm", (str(tmp_path),)).find(Composition.parse("mqa")) == ()


@pytest.mark.usefixtures("alone")
def test_another_baseline_is_no_evidence(tmp_path):
    results = from_accuracies(ENOUGH, baseline="efficient")
    write_results(tmp_path / "results.json", results)
    assert Library("image", (str(tmp_path),)).find(Composition.parse("mqa")) == ()


@pytest.mark.usefixtures("alone")
def test_seeds_that_are_not_shared_are_no_evidence(tmp_path):
    results = from_accuracies({"standard": [0.9], "efficient@2": [0.9]})
    write_results(tmp_path / "results.json", results)
    assert Library("image", (str(tmp_path),)).find(EFFICIENT) == ()


@pytest.mark.usefixtures("alone")
def test_a_recipe_of_another_version_is_left_out(tmp_path):
    write_results(tmp_path / "results.json", from_accuracies(ENOUGH, recipe="gone"))
    assert Library("image", (str(tmp_path),)).find(EFFICIENT) == ()


def test_an_absent_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="absent"):
        Library("image", (str(tmp_path / "absent"),))


def test_files_of_the_package_may_hold_something_else(tmp_path, monkeypatch):
    (tmp_path / "edge.json").write_text(json.dumps({"runs": []}))
    monkeypatch.setattr(module, "_packaged", lambda: [tmp_path / "edge.json"])
    assert Library("lm").results == {}
    (tmp_path / "torn.json").write_text("{")
    monkeypatch.setattr(module, "_packaged", lambda: [tmp_path / "torn.json"])
    with pytest.raises(DataError, match="torn.json"):
        Library("lm")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("mqa", "none: run `suffice compare --recipe imdb --mechanisms standard,mqa`"),
        (
            "efficient+kv:1",
            "none of the whole: `suffice compare --recipe imdb --mechanisms "
            "standard,efficient` is the nearest that is published",
        ),
        (
            "standard+kv:1",
            "none of the whole: `suffice compare --recipe imdb --mechanisms "
            "standard,mqa` is the nearest that is published",
        ),
        ("standard+kv:2", "standard,gqa` is"),
        ("standard+window:8", "standard,sliding_window` is"),
        ("standard+memory:8", "none: `suffice quantise DIR --bits 8` measures what a trained"),
        ("standard+memory:8+weights:4", "--bits 4`"),
    ],
)
def test_missing_evidence_names_the_command(name, command):
    assert command in missing(Composition.parse(name), "classify", "imdb")
