"""What is known of quality: the package's results and the user's."""

from __future__ import annotations

import json

import pytest

from suffice.advise import Composition
from suffice.advise import evidence as module
from suffice.advise.evidence import Library, Scope
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
    assert sources[:2] == ["v2-imdb.json", "v2-amazon.json"]  # the paper's size, most seeds
    assert "v2-womens-clothing.json" in sources[2:]
    assert Library("translate").find(EFFICIENT)
    assert Library("lm").find(Composition.parse("mqa")) == ()
    assert Library("lm").find(Composition.parse("efficient+window:8")) == ()


def test_only_what_is_near_in_length_and_size_may_speak_for_a_request():
    tokens, parameters = 64, 100_000  # about those of lm.json
    for asked, is_far in (
        (Scope(tokens=tokens, parameters=parameters), False),
        (Scope(tokens=4 * tokens, parameters=parameters), False),
        (Scope(tokens=16 * tokens, parameters=parameters), True),
        (Scope(tokens=tokens, parameters=100 * parameters), True),
    ):
        (one,) = Library("lm", asked=asked).find(EFFICIENT)
        assert one.far == ("64 tokens and 0.1M parameters" if is_far else "")
        assert one.sentence.endswith(", which is of 64 tokens and 0.1M parameters") is is_far
    # what is near comes first, and what loses far away is silent where something near speaks
    asked = Scope(tokens=32, parameters=700_000)
    found = Library("classify", asked=asked).find(EFFICIENT)
    assert [bool(one.far) for one in found] == sorted(bool(one.far) for one in found)
    assert not found[0].far
    asked = Scope(tokens=48, parameters=300_000)
    (nearest, *_) = Library("classify", asked=asked).find(EFFICIENT)
    assert nearest.source == "atlas-womens-clothing-300k.json"


@pytest.mark.usefixtures("alone")
def test_the_users_own_comparison_is_near_whatever_it_was_of(tmp_path):
    write_results(tmp_path / "results.json", from_accuracies(ENOUGH))
    asked = Scope(tokens=9_999, parameters=10**9)
    library = Library("image", (str(tmp_path),), 0.02, asked)
    assert not library.find(EFFICIENT)[0].far


@pytest.mark.usefixtures("alone")
def test_recall_is_no_evidence_for_a_language_model(tmp_path):
    for name, heard in (("atlas_mqar_300k", False), ("atlas_shakespeare_300k", True)):
        write_results(tmp_path / "results.json", from_accuracies(ENOUGH, recipe=name))
        assert bool(Library("lm", (str(tmp_path),)).results) is heard


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
