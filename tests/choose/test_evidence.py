"""What is known of quality: the package's comparisons and the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suffice.choose import Composition, Request, base_of
from suffice.choose import evidence as module
from suffice.choose.candidates import Candidate
from suffice.choose.evidence import Library, evidence_of, read_evidence
from suffice.comparison.plan import Plan
from suffice.comparison.results import write_results
from suffice.errors import DataError
from suffice.train.recipes import recipe
from suffice.train.recipes.own_data import with_settings
from tests.comparison.synthetic import from_accuracies, recall_results

from .worlds import evidence, lm_base

ENOUGH = {"standard": [0.9, 0.91, 0.92], "efficient": [0.9, 0.911, 0.919], "mqa": [0.5, 0.52, 0.5]}
RECALL = with_settings(recipe("mqar"), {"enough": 0.995})
IMAGE = base_of(Request(task="image", model="digits_vit"))


@pytest.fixture
def package(monkeypatch):
    """Let the package bring these comparisons along, at first none."""
    known = []
    monkeypatch.setattr(module, "read_evidence", lambda: iter(known))
    return known


def own_folder(path, accuracies=ENOUGH, *, name="digits_vit", settings=(), **changes):
    """Write a finished comparison as `suffice compare` leaves it."""
    chosen = with_settings(recipe(name), dict(settings))
    results = from_accuracies(accuracies, recipe=name, title=chosen.title, **changes)
    path.mkdir(exist_ok=True)
    mechanisms = list(dict.fromkeys(c.mechanism for c in results.cells))
    fixed = {"heads": [1], "seeds": 3, "margin": 0.01, "device": "cpu"}
    plan = Plan(recipe=chosen, mechanisms=mechanisms, baseline=results.baseline, **fixed)
    plan.claim(path, resume=False)
    write_results(path / "results.json", results)
    return str(path)


def library(base=IMAGE, **fields):
    return Library(Request(task=base.task, **fields), base)


def candidate(name, base=IMAGE):
    return Candidate.of(Composition.parse(name), base)


def test_the_package_has_small_evidence_for_every_task():
    found = list(read_evidence())
    assert {one.task for one in found} == {"lm", "classify", "image", "translate"}
    assert {one.recalls for one in found if one.task == "lm"} == {True, False}
    assert {one.recalls for one in found if one.task != "lm"} == {False}
    assert len({one.source for one in found}) > 15
    assert not any(one.own for one in found)
    imdb = next(e for e in found if (e.source, e.mechanism) == ("v2-imdb.json", "efficient"))
    assert imdb.tokens == 32
    assert " points, 95% CI [" in imdb.sentence
    assert "32 tokens, 0.65M parameters" in imdb.sentence


@pytest.mark.parametrize(("of_baseline", "of_other", "shown"), [(1, 5, 0), (5, 2, 0), (3, 4, 1)])
def test_both_sides_have_the_seeds_of_a_first_look(of_baseline, of_other, shown):
    results = recall_results({"standard": 5, "linear": 0}, seeds=5, parameters=75_000)
    seeds = {"standard": of_baseline, "linear": of_other}
    cells = tuple(cell for cell in results.cells if cell.seed < seeds[cell.mechanism])
    found = list(evidence_of(replace(results, cells=cells), RECALL, "x", 0.01))
    assert len(found) == shown
    assert all("by Standard in 3 of 3" in one.difference for one in found)
    size = cells[0].parameters_model
    assert all((one.tokens, one.parameters, one.recalls) == (24, size, True) for one in found)


def test_recall_is_judged_by_the_seeds_that_solve_it():
    results = recall_results({"standard": 5, "linear": 0, "gla": 3, "mqa": 5}, seeds=5)
    found = evidence_of(results, RECALL, "x", 0.01)
    verdicts = {one.mechanism: one.verdict for one in found}
    assert verdicts == {"linear": "does not suffice", "gla": "undecided", "mqa": "suffices"}


def test_each_number_of_heads_is_judged_by_itself_and_rows_may_be():
    blind, learned = [0.1, 0.11, 0.09, 0.1], [0.9, 0.91, 0.89, 0.9]
    both = {"standard@1": blind, "efficient@1": blind, "standard@4": learned, "mqa@4": learned}
    results = from_accuracies(both, majority=0.1)
    found = list(evidence_of(results, recipe("digits_vit"), "x", 0.05))
    assert [(one.mechanism, one.num_heads) for one in found] == [("mqa", 4)]
    two = {"standard@4": learned, "mqa@4": [0.88, 0.93, 0.87, 0.92]}
    two["efficient@4"] = [0.93, 0.86, 0.91, 0.88]
    results = from_accuracies(two, majority=0.1)
    widths = [
        next(e.difference for e in evidence_of(results, recipe("digits_vit"), "x", 0.01, **how))
        for how in ({"together": True}, {"together": False})
    ]
    assert widths[0] != widths[1]  # the interval allows for a choice among both


def test_a_users_results_are_judged_at_the_margin(tmp_path, package):
    package.append(evidence("does not suffice", task="image", mechanism="efficient", own=False))
    folder = own_folder(tmp_path / "run")
    for name in (folder, f"{folder}/results.json"):
        known = library(results=(name,), quality=0.02)
        (one,) = known.find(candidate("efficient"))  # the user's decides alone
        assert (one.source, one.verdict, one.margin, one.own) == (name, "suffices", 0.02, True)
        assert one.sentence.startswith("suffices at 2.0 points: ")
        assert known.suffices(candidate("efficient"))
        assert known.loss(candidate("efficient")) is None
        assert known.unheard == {}
        assert known.loss(candidate("mqa")).own
    assert not library(results=(folder,), quality=0.0).suffices(candidate("efficient"))
    assert library().loss(candidate("efficient")).source == "x.json"


def test_the_sizes_of_a_users_results_are_those_of_their_plan(tmp_path, package):
    package.clear()
    folder = own_folder(tmp_path / "run", name="imdb", settings={"length": 512})
    base = base_of(Request(task="classify"))
    (one,) = library(base, results=(folder,)).find(candidate("efficient", base))
    assert one.tokens == 512


@pytest.mark.parametrize(
    ("task", "changes", "why"),
    [
        ("lm", {}, "it is of task image"),
        ("image", {"baseline": "efficient"}, "its baseline is efficient"),
        ("image", {"title": "ViT on 8x8 digits, d_model=9"}, "'digits_vit' with its sizes"),
        ("image", {"recipe": "gone"}, "'gone' with its sizes"),
        ("image", {"majority": 0.9, "title": recipe("digits_vit").title}, "no verdict on quality"),
    ],
)
def test_results_that_are_no_evidence_are_named(tmp_path, package, task, changes, why):
    package.clear()
    values = {"title": recipe("digits_vit").title, **changes}
    write_results(tmp_path / "results.json", from_accuracies(ENOUGH, **values))
    known = library(IMAGE if task == "image" else lm_base(), results=(str(tmp_path),))
    assert known.evidence == {}
    assert why in known.unheard[str(tmp_path)]


def test_an_absent_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="absent"):
        library(results=(str(tmp_path / "absent"),))


def test_compositions_are_found_by_what_they_compute(package):
    package += [evidence("suffices", own=False), evidence("undecided", own=False, mechanism="gla")]
    base = lm_base()
    known = library(base)
    assert [one.mechanism for one in known.find(candidate("standard+kv:1", base))] == ["mqa"]
    for name in ("standard", "standard+kv:2", "mqa+weights:4"):
        assert known.find(candidate(name, base)) == ()
    assert not known.suffices(candidate("mqa", base))  # only one's own comparisons recommend
    assert known.suffices(candidate("standard", base))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], False),
        ([("suffices", {})], True),
        ([("suffices", {}), ("undecided: more seeds", {})], False),
        ([("suffices", {"recalls": True})], False),
        ([("suffices", {}), ("does not suffice", {"own": False})], True),
    ],
)
def test_all_of_the_users_own_have_to_show_it(package, verdicts, expected):
    package += [evidence(verdict, **fields) for verdict, fields in verdicts]
    base = lm_base()
    assert library(base).suffices(candidate("mqa", base)) is expected


def test_recall_has_to_be_shown_where_it_is_asked_for(package):
    base = lm_base()
    package.append(evidence("suffices"))
    mqa = candidate("mqa", base)
    assert not library(base, recall=True).suffices(mqa)
    package.append(evidence("suffices", recalls=True))
    assert library(base, recall=True).suffices(mqa)
    package[1] = evidence("does not suffice", recalls=True)
    assert not library(base, recall=True).suffices(mqa)
    assert library(base, recall=True).loss(mqa) == package[1]
    assert library(base).loss(mqa) is None


def test_parts_of_what_loses_lose_unless_some_layers_are_standard(package):
    package.append(evidence("does not suffice", own=False, mechanism="linear"))
    package.append(evidence("undecided", own=False, mechanism="linear+kv:2"))
    base = lm_base(depth=4)
    known = library(base)
    lost = {
        name: known.loss(candidate(name, base)) is not None
        for name in ("linear", "linear+kv:1", "linear+weights:4", "linear+softmax:2", "linear+kv:2")
    }
    assert lost == {
        "linear": True,
        "linear+kv:1": True,
        "linear+weights:4": True,
        "linear+softmax:2": False,
        "linear+kv:2": False,
    }
    assert known.about(candidate("linear+kv:2+weights:8", base))[0] == "linear+kv:2"
    assert known.about(candidate("mqa+weights:8", base)) == ("", ())
    assert library(base, quality=0.02).loss(candidate("linear", base)) is None  # a wider margin
