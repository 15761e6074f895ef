"""Complete advice: from simulated times, and one small real run."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from suffice.choose import Composition, Request, advise
from suffice.choose import evidence as module
from suffice.choose.candidates import format_bytes

from .worlds import World, evidence

NAMES = ("efficient", "mqa", "gqa", "optimised")
FASTER = {"mqa": 0.5, "efficient": 0.7, "gqa": 0.9, "optimised": 1.2}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Comparisons that are known, at first none."""
    found = []
    monkeypatch.setattr(module, "read_evidence", lambda: iter(found))
    return found


def advise_in(world, **fields):
    values = {"model": "nanogpt_char_cpu", "length": 64, "minutes": 10.0, "mechanisms": NAMES}
    return world.advise(Request(task="lm", **{**values, **fields}))


def test_the_fastest_that_suffices_is_taken(known):
    known += [evidence("suffices", mechanism=name) for name in ("efficient", "gqa")]
    advice = advise_in(World(FASTER))
    assert (advice.winner, advice.known) == ("efficient", True)
    ranked = [(place.name, place.rank) for place in advice.places]
    order = ("mqa", "efficient", "gqa", "standard", "optimised")
    assert ranked == [(name, rank) for rank, name in enumerate(order, start=1)]
    assert advice.trial.name == "mqa"  # faster, and untried
    assert advice.sentence.startswith(
        "Take efficient, which suffices by your own comparison. Efficient takes 700 ms a token, "
        "0.70x Standard's (0.70 to 0.70) and needs "
    )
    assert any(n.startswith("Quality of efficient: suffices at 1.0 points") for n in advice.notes)
    assert advice.seconds <= 600.0
    assert (advice.unit, advice.model, advice.length) == ("token", "nanogpt_char_cpu", 64)
    known.append(evidence("suffices", mechanism="mqa"))
    advice = advise_in(World(FASTER))
    assert (advice.winner, advice.known, advice.trial) == ("mqa", True, None)


def test_without_a_comparison_standard_stays_and_one_is_offered(known):
    advice = advise_in(World(FASTER))
    assert (advice.winner, advice.known, advice.trial.name) == ("standard", False, "mqa")
    assert advice.sentence.startswith(
        "Stay with standard unless a comparison shows that mqa suffices, which takes 500 ms a "
        "token, 0.50x Standard's"
    )
    assert advice.trial.command == "suffice compare --recipe lm_small --mechanisms standard,mqa"
    rows, steps = 903_488 // 64, 5 * -(-(903_488 // 64) // 12)
    assert rows > 0
    assert advice.trial.minutes == pytest.approx(5 * steps * 0.03 * 12 * 1.5 / 60)
    known.append(evidence("does not suffice", mechanism="mqa", own=False))
    assert advise_in(World(FASTER)).trial.name == "efficient"  # what loses elsewhere comes last
    assert advise_in(World(FASTER), mechanisms=("mqa",)).trial.name == "mqa"
    known[0] = evidence("does not suffice", mechanism="mqa")
    own = advise_in(World(FASTER), mechanisms=("mqa",))
    assert (own.winner, own.trial) == ("standard", None)
    assert own.find("mqa").reason.startswith("loses too much: does not suffice at 1.0 points")


def test_recall_that_is_asked_for_has_to_be_shown(known):
    solves = [evidence("suffices", mechanism="efficient", recalls=True, own=False)]
    known += [evidence("suffices", mechanism=name) for name in ("mqa", "efficient")]
    assert advise_in(World(FASTER)).winner == "mqa"
    assert advise_in(World(FASTER), recall=True).winner == "standard"
    known += solves
    assert advise_in(World(FASTER), recall=True).winner == "standard"  # own ones decide alone
    known.append(evidence("suffices", mechanism="efficient", recalls=True))
    assert advise_in(World(FASTER), recall=True).winner == "efficient"


def test_slower_ones_are_never_recommended(known):
    known += [evidence("suffices", mechanism=name) for name in NAMES]
    advice = advise_in(World(dict.fromkeys(NAMES, 1.3)))
    assert (advice.winner, advice.known) == ("standard", True)
    assert advice.sentence.startswith("Stay with standard: nothing that could replace it is faster")
    assert advice.find("mqa").reason == "is slower than Standard"
    advice = advise_in(World(FASTER, first={"mqa": 1.5}))
    assert advice.winner == "efficient"
    assert advice.find("mqa").rank == 1
    assert advice.find("mqa").reason == "reads the input in 1.50x Standard's time"
    assert any(n.startswith("mqa takes 500 ms") and "reads the" in n for n in advice.notes)


def test_noise_is_no_difference(known):
    known.append(evidence("suffices"))
    world = World({"mqa": 0.97}, noise={"mqa": [0.8, 1.2, 1.0, 0.9, 1.1]})
    advice = advise_in(world, mechanisms=("mqa",))
    assert advice.winner == "standard"
    assert {place.rank for place in advice.places} == {1}


def test_a_short_budget_is_spread_and_limits_what_is_timed(known):
    known.append(evidence("does not suffice", mechanism="efficient", own=False))
    world = World({}, wall=0.2)
    advice = advise_in(world, mechanisms=(), minutes=1.0, length=256)
    assert advice.seconds <= 60.0
    first = [Composition.parse(name) for name in dict.fromkeys(world.taken)]
    assert first[0].name == "standard"
    assert not first[1].changes  # published, and not the most changed
    assert len({len(one.changes) for one in first[1:6]}) >= 3
    assert len({(one.memory, one.weights) for one in first}) >= 4
    assert not any(one.mechanism == "efficient" and not one.softmax for one in first)
    left = [place for place in advice.places if place.status == "not measured"]
    assert left
    assert all(p.reason.startswith("the time ended before its turn; by closed") for p in left)
    assert any(note.startswith(f"{len(left)} not measured, such as ") for note in advice.notes)


def test_too_little_time_stays_with_standard_unless_it_is_too_slow():
    advice = advise_in(World(FASTER, wall=20.0), minutes=1.0)
    assert (advice.winner, advice.known, advice.trial) == ("standard", False, None)
    assert "1 minutes were too short to time others" in advice.sentence
    assert advice.find("standard").seconds.median == 1.0
    assert advice.cli
    advice = advise_in(World(FASTER, wall=20.0), minutes=1.0, latency=0.5)
    assert (advice.winner, advice.cli) == (None, ())
    assert advice.sentence.startswith(
        "Nothing is recommended: standard takes 1.00 s a token, more than 500 ms, and 1 minutes "
    )


def test_beyond_the_memory_the_least_changed_is_taken(known):
    needs = {p.name: p.needs.total for p in advise_in(World({})).places}
    enough, total = needs["mqa"], format_bytes(needs["standard"])
    advice = advise_in(World(FASTER), memory=enough)
    assert (advice.winner, advice.known, advice.trial.name) == ("mqa", False, "mqa")
    assert f"untried: standard needs {total}, more than" in advice.sentence
    assert advice.find("standard").status == "ruled out"
    assert advice.find("standard").rank is not None  # the yardstick is timed all the same
    assert advice.find("gqa").rank is None
    known.append(evidence("suffices", mechanism="efficient"))
    assert advise_in(World(FASTER), memory=enough).winner == "efficient"
    advice = advise_in(World(dict.fromkeys(NAMES, 1.5)), memory=enough)
    assert advice.winner is None
    assert advice.sentence.endswith("is slower than Standard.")
    advice = advise_in(World({}), memory=1000)
    assert advice.winner is None
    assert advice.sentence.startswith("Nothing is recommended: efficient, the smallest, needs ")


def test_the_nearest_is_named_if_nothing_is_fast_enough():
    advice = advise_in(World({"mqa": 0.5}), latency=0.03)
    assert (advice.winner, advice.trial) == (None, None)
    assert advice.sentence == (
        "Nothing is recommended: mqa, the fastest within the memory, takes 500 ms a token, more "
        "than 30.0 ms."
    )


def test_others_are_timed_where_standard_does_not_fit_the_machine(monkeypatch, known):
    known.append(evidence("suffices", mechanism="efficient"))
    enough = advise_in(World({})).find("mqa").needs.total
    monkeypatch.setattr(sys.modules["suffice.choose.advice"], "_memory", lambda _: enough)
    world = World(FASTER)
    advice = advise_in(world)
    assert "standard" not in world.taken
    assert advice.find("standard").seconds is None
    assert (advice.winner, advice.find("efficient").ratio) == ("efficient", None)


def test_what_changes_a_trained_model_is_named_and_never_offered():
    name = "standard+weights:8"
    advice = advise_in(World({name: 0.5, "mqa": 0.7}), mechanisms=(name, "mqa"))
    assert (advice.winner, advice.trial.name) == ("standard", "mqa")
    assert any(
        note.startswith(f"{name} takes 500 ms") and "quantise DIR --bits 8" in note
        for note in advice.notes
    )


def test_an_interruption_leaves_advice_from_the_finished_rounds(known):
    known.append(evidence("suffices"))
    advice = advise_in(World(FASTER, stop_after=45))
    assert (advice.interrupted, advice.winner) == (True, "mqa")
    assert advice.notes[0].startswith("Interrupted")
    assert advice.find("mqa").rounds == 5


def test_evidence_is_quoted_the_decided_first(known):
    known += [evidence("undecided", seeds=n, source=f"{n}.json") for n in (3, 4)]
    known.append(evidence("does not suffice", source="5.json"))
    place = advise_in(World(FASTER)).find("mqa")
    assert place.evidence_told.startswith("does not suffice at 1.0 points: -0.10 points, 5 seeds")
    assert place.evidence_told.endswith("; and 1 more, which --json lists")
    assert len(place.evidence) == 3
    name = "mqa+weights:8"
    told = advise_in(World({}), mechanisms=(name,)).find(name).evidence_told
    assert told.startswith("not compared; mqa alone does not suffice")
    assert advise_in(World({})).find("gqa").evidence_told == "not compared"


def test_progress_is_reported_and_the_advice_is_plain_data():
    shares, texts = [], []
    progress = SimpleNamespace(say=texts.append, step=lambda at, total: shares.append(at / total))
    request = Request(task="lm", model="nanogpt_char_cpu", length=64, mechanisms=NAMES)
    content = json.loads(json.dumps(World(FASTER).advise(request, progress=progress).to_json()))
    assert content["places"][0]["name"] == "mqa"
    assert texts[0] == "timing standard"
    assert sorted(shares) == shares
    assert max(shares) <= 1.0


def test_a_small_real_run():
    names = ("efficient", "performer")
    advice = advise(Request(task="image", model="digits_vit", mechanisms=names, minutes=0.05))
    measured = {p.name: p for p in advice.places if p.rank is not None}
    assert advice.winner == "standard"
    assert all(place.seconds.median > 0.0 for place in measured.values())
    assert advice.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert advice.machine["threads"] == torch.get_num_threads()


def test_a_gpu_has_its_own_memory(monkeypatch):
    facts = SimpleNamespace(total_memory=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    memory = sys.modules["suffice.choose.advice"]._memory
    assert memory(torch.device("cuda")) == 7
    assert memory(torch.device("cpu")) > 10**6
