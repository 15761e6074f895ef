"""What is known of quality: the package's results and the user's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suffice.errors import DataError
from suffice.measure.advise import Composition
from suffice.measure.advise.evidence import (
    Library,
    Scope,
    comparisons,
    deciding,
    suffices,
)
from suffice.measure.plan import Plan
from suffice.measure.results import write_results
from suffice.recipes import recipe
from suffice.recipes.own_data import with_settings
from tests.measure.synthetic import from_accuracies, recall_results

from .worlds import evidence

EFFICIENT = Composition.parse("efficient")
ENOUGH = {"standard": [0.9, 0.91, 0.92], "efficient": [0.9, 0.911, 0.919], "mqa": [0.5, 0.52, 0.5]}
ASKED = Scope(tokens=16, parameters=43_000, num_heads=1)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Let the package bring no results along."""
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path / "nothing")


def own_folder(path, accuracies=ENOUGH, *, name="digits_vit", settings=(), **changes):
    """Write a finished comparison as `suffice compare` leaves it."""
    chosen = with_settings(recipe(name), dict(settings))
    results = from_accuracies(accuracies, recipe=name, title=chosen.title, **changes)
    path.mkdir(exist_ok=True)
    mechanisms = list(dict.fromkeys(c.mechanism for c in results.cells))
    Plan(
        recipe=chosen,
        mechanisms=mechanisms,
        heads=[1],
        seeds=3,
        baseline=results.baseline,
        margin=0.01,
        device="cpu",
    ).claim(path, resume=False)
    write_results(path / "results.json", results)
    return str(path)


def test_the_package_has_evidence_for_tasks_it_trained():
    sources = list(dict.fromkeys(one.source for one in Library("classify").find(EFFICIENT)))
    assert sources[:2] == ["v2-imdb.json", "v2-amazon.json"]  # the paper's size, most seeds
    assert "v2-womens-clothing.json" in sources[2:]
    (first, *_) = Library("translate").find(EFFICIENT)
    assert "95% CI [" in first.sentence
    assert not first.own
    assert Library("lm").find(Composition.parse("efficient+window:8")) == ()


def test_near_is_of_length_size_and_heads():
    asked = Scope(tokens=32, parameters=700_000, num_heads=4)
    library = Library("classify", asked=asked)
    found = library.find(EFFICIENT)
    assert [bool(one.far) for one in found] == sorted(bool(one.far) for one in found)
    assert {one.num_heads for one in deciding(found)} == {4}
    assert any(one.num_heads == 1 and one.far.endswith("and 1 head") for one in found)
    for far in ({"tokens": 1024}, {"parameters": 10**9}, {"num_heads": 6}):
        scope = Scope(**{"tokens": 32, "parameters": 700_000, "num_heads": 4, **far})
        assert deciding(Library("classify", asked=scope).find(EFFICIENT)) == ()
    asked = Scope(tokens=64, parameters=2_000_000, num_heads=4)
    (nearest, *_) = Library("classify", asked=asked).find(EFFICIENT)
    assert nearest.source == "v2-amazon.json"


@pytest.fixture
def recalled(monkeypatch, tmp_path):
    """Let the package have one table of recall, which linear never solves."""
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path)
    counts = {"standard": 5, "linear": 0, "mqa": 5, "gla": 3, "sliding_window": 0}
    results = recall_results(counts, seeds=5, parameters=75_000)
    content = {"scale": "paper", "threads": 1, "recipe": {}, "results": results.to_json()}
    (tmp_path / "atlas-mqar8-70k.json").write_text(json.dumps(content))


@pytest.mark.usefixtures("recalled")
def test_recall_counts_for_language_models_alone_and_is_not_enough():
    near = Scope(tokens=64, parameters=90_000, num_heads=4)
    linear = Composition.parse("linear")
    library = Library("lm", asked=near)
    assert all(one.recalls for one in library.find(linear))
    assert "0 of 5 seeds [0, 52]%" in library.loss(linear)
    assert library.loss(Composition.parse("linear+kv:1")).startswith("linear alone does not")
    assert library.loss(Composition.parse("linear+softmax:3")) is None
    assert [one.verdict for one in library.find(Composition.parse("gla"))] == ["undecided"]
    assert Library("classify", asked=near).find(linear) == ()
    shown = tuple(evidence("suffices", own=False, recalls=True, data=d) for d in ("mqar", "copy"))
    assert not suffices(shown, recall=True)


@pytest.mark.parametrize(("of_baseline", "of_other", "said"), [(1, 5, 0), (5, 2, 0), (3, 4, 1)])
def test_both_sides_have_the_seeds_of_a_first_look(
    monkeypatch, tmp_path, of_baseline, of_other, said
):
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path)
    results = recall_results({"standard": 5, "linear": 0}, seeds=5, parameters=75_000)
    seeds = {"standard": of_baseline, "linear": of_other}
    cells = tuple(cell for cell in results.cells if cell.seed < seeds[cell.mechanism])
    content = {"scale": "paper", "threads": 1, "recipe": {}}
    content["results"] = replace(results, cells=cells).to_json()
    (tmp_path / "atlas-mqar8-70k.json").write_text(json.dumps(content))
    found = Library("lm").find(Composition.parse("linear"))
    assert len(found) == said
    assert all("Standard in 3 of 3" in one.difference for one in found)


@pytest.mark.usefixtures("recalled")
def test_compositions_are_found_by_what_they_compute():
    library = Library("lm", asked=Scope(tokens=64, parameters=90_000, num_heads=4))
    (one,) = library.find(Composition.parse("standard+kv:1"))
    assert (one.verdict, one.source) == ("suffices", "atlas-mqar8-70k.json")  # mqa
    (one,) = library.find(Composition.parse("standard+window:3"))
    assert one.verdict == "does not suffice"  # sliding_window at 24 tokens
    for name in ("standard", "standard+window:4", "mqa+weights:4"):
        assert library.find(Composition.parse(name)) == ()
    far = Library("lm", asked=Scope(tokens=1024, parameters=90_000, num_heads=4))
    assert far.find(Composition.parse("standard+kv:1")) == ()


def test_far_evidence_neither_recommends_nor_rules_out():
    far = Scope(tokens=1024, parameters=300_000, num_heads=4)
    for name in ("linear", "linear+kv:1", "sliding_window"):
        library = Library("lm", asked=far)
        assert library.loss(Composition.parse(name)) is None
        assert not suffices(library.find(Composition.parse(name)))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ([], False),
        ([("a", "suffices")], False),  # one data set of others
        ([("a", "suffices"), ("a", "suffices")], False),
        ([("a", "suffices"), ("b", "suffices")], True),
        ([("a", "suffices"), ("b", "suffices"), ("c", "undecided: ...")], False),
        ([("a", "suffices"), ("b", "does not suffice")], False),
    ],
)
def test_all_near_comparisons_of_the_package_have_to_show_it(of, expected):
    found = [evidence(verdict, own=False, data=data) for data, verdict in of]
    assert suffices(found) is expected
    far = evidence("does not suffice", own=False, far="9 tokens, 0.1M parameters and 4 heads")
    assert suffices([*found, far]) is expected
    assert suffices([*found, evidence("suffices")])  # one's own decides
    assert not suffices([*found, evidence("suffices"), evidence("undecided: ...")])


@pytest.mark.usefixtures("alone")
def test_a_users_results_are_judged_at_the_margin(tmp_path):
    folder = own_folder(tmp_path / "run")
    for name in (folder, f"{folder}/results.json"):
        library = Library("image", (name,), 0.02, ASKED)
        (one,) = library.find(EFFICIENT)
        assert (one.source, one.verdict, one.margin, one.own) == (name, "suffices", 0.02, True)
        assert one.sentence.startswith("suffices at 2.0 points: ")
        assert suffices((one,))
        assert library.unheard == {}
        assert library.find(Composition.parse("mqa"))[0].verdict == "does not suffice"


@pytest.mark.usefixtures("alone")
def test_the_sizes_of_a_users_results_are_those_of_their_plan(tmp_path):
    folder = own_folder(tmp_path / "run", name="imdb", settings={"length": 512})
    asked = Scope(tokens=32, parameters=43_000, num_heads=1)
    library = Library("classify", (folder,), 0.02, asked)
    (one,) = library.find(EFFICIENT)
    assert one.far == "512 tokens, 0.0M parameters and 1 head"
    assert "512 tokens" in library.unheard[folder]
    assert not suffices((one,))
    long = Scope(tokens=1024, parameters=43_000, num_heads=1)
    assert suffices(Library("classify", (folder,), 0.02, long).find(EFFICIENT))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("task", "changes", "why"),
    [
        ("lm", {}, "it is of task image"),
        ("image", {"baseline": "efficient"}, "its baseline is efficient"),
        ("image", {"title": "ViT on 8x8 digits, d_model=9"}, "'digits_vit' with its sizes"),
        ("image", {"recipe": "gone"}, "'gone' with its sizes"),
    ],
)
def test_results_that_are_no_evidence_are_named(tmp_path, task, changes, why):
    values = {"title": recipe("digits_vit").title, **changes}
    write_results(tmp_path / "results.json", from_accuracies(ENOUGH, **values))
    library = Library(task, (str(tmp_path),), asked=ASKED)
    assert library.evidence == {}
    assert why in library.unheard[str(tmp_path)]


@pytest.mark.usefixtures("alone")
def test_where_nothing_was_learned_nothing_is_evidence(tmp_path):
    blind = {"standard": [0.1, 0.11, 0.09, 0.1], "efficient": [0.1, 0.11, 0.09, 0.1]}
    assert comparisons(from_accuracies(blind), 0.05)
    folder = own_folder(tmp_path / "run", blind, majority=0.1)
    library = Library("image", (folder,), 0.05, ASKED)
    assert library.find(EFFICIENT) == ()
    assert "no verdict on quality" in library.unheard[folder]


def test_each_number_of_heads_is_judged_by_itself():
    blind, learned = [0.1, 0.11, 0.09, 0.1], [0.9, 0.91, 0.89, 0.9]
    both = {"standard@1": blind, "efficient@1": blind, "standard@4": learned, "mqa@4": learned}
    found = comparisons(from_accuracies(both, majority=0.1), 0.05)
    assert [(one.mechanism, one.num_heads) for one in found] == [("mqa", 4)]


@pytest.mark.usefixtures("alone")
def test_seeds_that_are_not_shared_are_no_evidence(tmp_path):
    folder = own_folder(tmp_path / "run", {"standard": [0.9], "efficient@2": [0.9]})
    assert Library("image", (folder,)).find(EFFICIENT) == ()


def test_an_absent_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="absent"):
        Library("image", (str(tmp_path / "absent"),))


def test_the_whole_is_judged_before_its_parts(tmp_path):
    whole = {**ENOUGH, "mqa+window:4": ENOUGH["efficient"]}
    library = Library("image", (own_folder(tmp_path / "run", whole),), 0.02, ASKED)
    assert library.loss(Composition.parse("mqa+window:8")).startswith("mqa alone does not suffice")
    assert library.loss(Composition.parse("mqa+window:4")) is None
    packed = Composition.parse("mqa+window:8+weights:4")
    assert library.loss(packed) == library.loss(Composition.parse("mqa+window:8"))


@pytest.mark.usefixtures("alone")
def test_near_evidence_stands_first_then_the_users_and_what_is_undecided_is_no_loss():
    library, far = Library("lm"), "9 tokens, 0.1M parameters and 4 heads"
    order = [("", True), ("", False), (far, True), (far, False)]
    library.evidence["efficient"] = [
        evidence("undecided: ...", far=where, own=own) for where, own in reversed(order)
    ]
    assert [(one.far, one.own) for one in library.find(EFFICIENT)] == order
    assert library.loss(EFFICIENT) is None


def test_files_of_the_package_may_hold_something_else(tmp_path, monkeypatch):
    (tmp_path / "edge.json").write_text(json.dumps({"runs": []}))
    monkeypatch.setattr("suffice.measure.published.FOLDER", tmp_path)
    assert Library("lm").evidence == {}
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(DataError, match="torn.json"):
        Library("lm")
