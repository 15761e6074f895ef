"""Complete advice: from simulated times, and one small real run."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from suffice.errors import ConfigError
from suffice.measure.advise import Composition, Request, advise, base_of
from suffice.measure.advise.evidence import Library
from suffice.measure.advise.request import Candidate
from suffice.measure.advise.timing import CandidateTimer, now

from .worlds import World, evidence, lm_base, translator_base

NAMES = ("efficient", "mqa", "gqa", "optimised", "standard+kv:1")


@pytest.fixture(autouse=True)
def everything_suffices(monkeypatch):
    """Times decide, except where a test gives evidence of its own."""
    monkeypatch.setattr(Library, "find", lambda *_: (evidence("suffices"),))


def test_recall_that_is_asked_for_has_to_be_shown(monkeypatch):
    kept = evidence("suffices")
    recalled = evidence("suffices", own=False, recalls=True)
    known = {"gqa": (kept, recalled)}
    monkeypatch.setattr(Library, "find", lambda _, one: known.get(one.name, (kept,)))
    world = {"mqa": 0.5, "gqa": 0.7}
    assert advise_in(World(world)).winner == "mqa"
    assert advise_in(World(world), recall=True).winner == "gqa"
    known["gqa"] = (kept, evidence("does not suffice", own=False, recalls=True))
    assert advise_in(World(world), recall=True).winner == "standard"
    with pytest.raises(ConfigError, match="recall"):
        Request(task="image", recall=True)


def test_the_least_changed_wins_where_standard_is_too_much(monkeypatch):
    monkeypatch.setattr(Library, "find", lambda *_: ())
    enough = advise_in(World({})).find("mqa").needs.total
    world = {"efficient": 0.5, "mqa": 0.7}
    advice = advise_in(World(world), memory=enough)
    assert advice.winner == "standard+kv:1"
    assert not advice.known
    assert advice.sentence.startswith("Nothing is known to suffice near 64 tokens, 0.8M ")
    assert " efficient takes 0.50x Standard's time" in advice.sentence


def test_far_evidence_neither_recommends_nor_rules_out(monkeypatch):
    world = {"mqa": 0.5}
    for verdict in ("suffices", "does not suffice"):
        far = evidence(verdict, far="9 tokens, 0.1M parameters and 4 heads")
        monkeypatch.setattr(Library, "find", lambda _, one, far=far: (far,))
        advice = advise_in(World(world), mechanisms=("mqa",))
        assert advice.winner == "standard"
        assert advice.trial.name == "mqa"
        assert "loses too much" not in advice.find("mqa").reason
        assert "far from the request: 9 tokens" in advice.find("mqa").evidence_told


def test_a_short_budget_is_spread():
    world = World({}, wall=1.0)
    advise_in(world, mechanisms=(), minutes=1.0, length=256)
    first = [Composition.parse(name) for name in dict.fromkeys(name for name, _ in world.taken)]
    assert first[0].name == "standard"
    assert len({len(one.changes) for one in first[1:6]}) >= 3
    assert not first[1].changes  # published, and not the most changed


def test_what_is_known_to_lose_is_measured_last(monkeypatch):
    lost = evidence("does not suffice", "-5.00 points")
    monkeypatch.setattr(
        Library, "find", lambda _, one: (lost,) if one.mechanism == "efficient" else ()
    )
    world = World({})
    advise_in(world)
    assert list(dict.fromkeys(name for name, _ in world.taken))[-1] == "efficient"


def test_what_is_not_known_to_suffice_is_named_beside_standard(monkeypatch):
    known = {"gqa": (evidence("suffices"),)}
    monkeypatch.setattr(Library, "find", lambda _, one: known.get(one.name, ()))
    world = {"mqa": 0.5, "efficient": 0.7, "gqa": 0.9}
    advice = advise_in(World(world))
    assert advice.winner == "gqa"
    assert advice.sentence.startswith("Take gqa, which suffices at 1.0 points by your own ")
    near = "comparison near 64 tokens, 0.8M parameters and 4 heads (a task: -0.10 points)"
    assert near in advice.sentence
    assert advice.known
    assert advice.trial.name == "mqa"  # faster, and untried
    assert any(note.startswith("mqa was faster, but is not recommended") for note in advice.notes)
    known.clear()
    advice = advise_in(World(world))
    assert advice.winner == "standard"
    assert advice.sentence.startswith("Nothing faster is known to suffice near 64 tokens, 0.8M")
    assert "mqa takes 0.50x Standard's time" in advice.sentence
    assert "good enough is not known: run `suffice compare --recipe" in advice.sentence
    assert "standard,mqa` (10 trainings, about " in advice.sentence
    assert (advice.known, advice.trial.trainings) == (False, 10)
    advice = advise_in(World(world), memory=advice.find("mqa").needs.total)
    assert advice.winner == "standard+kv:1"
    assert "within the limits, and standard is too much. Take standard+kv:1, " in advice.sentence
    assert "show whether it is good enough: run `suffice compare" in advice.sentence


def request(**fields):
    values = {"model": "nanogpt_char_cpu", "length": 64, "minutes": 10.0, "mechanisms": NAMES}
    return Request(task="lm", **{**values, **fields})


def advise_in(world, **fields):
    return advise(request(**fields), clock=world.clock, measure=world.measure, step=lambda *_: 0.06)


def test_the_winner_is_the_fastest_of_the_measured():
    world = World({"efficient": 0.7, "mqa": 0.5, "gqa": 0.9, "optimised": 1.2})
    advice = advise_in(world)
    assert advice.winner == "mqa"
    ranked = [(p.name, p.rank) for p in advice.places if p.rank is not None]
    assert ranked == [
        ("mqa", 1),
        ("standard+kv:1", 1),
        ("efficient", 3),
        ("gqa", 4),
        ("standard", 5),
        ("optimised", 6),
    ]
    times = {p.name: p.seconds.median for p in advice.places if p.seconds}
    assert times["mqa"] == min(times.values())
    assert "points): 500 ms a token, 0.50x Standard's (quartiles 0.50 to" in advice.sentence
    assert "the fastest, 1 other ties with it, of 6 measured" in advice.sentence
    assert advice.seconds <= 600.0
    assert (advice.unit, advice.model, advice.length, advice.interrupted) == (
        "token",
        "nanogpt_char_cpu",
        64,
        False,
    )


def test_equal_candidates_are_measured_once_and_tie():
    world = World({"mqa": 0.5})
    advice = advise_in(world)
    assert "standard+kv:1" not in {name for name, _ in world.taken}
    one, other = advice.find("mqa"), advice.find("standard+kv:1")
    assert (one.rank, one.ratio, one.crossover) == (other.rank, other.ratio, other.crossover)
    assert "ties with standard+kv:1: their quartiles overlap" in one.reason
    assert advice.find("absent") is None


def test_slower_candidates_are_never_recommended():
    slow = dict.fromkeys(NAMES, 1.3)
    advice = advise_in(World(slow))
    assert advice.winner == "standard"
    assert advice.sentence.startswith("Stay with standard: nothing measured is faster")
    assert advice.find("mqa").reason.startswith(
        "1.3 s a token, 1.30x Standard's (quartiles 1.30 to"
    )
    assert ": slower" in advice.find("mqa").reason


def test_slower_prefill_is_not_recommended():
    world = World({"mqa": 0.5, "efficient": 0.7}, first={"mqa": 1.5})
    advice = advise_in(world)
    assert advice.winner == "efficient"
    assert advice.find("mqa").rank == 1
    assert "not recommended: reading the input takes 1.50x Standard's" in advice.find("mqa").reason
    assert any(note.startswith("mqa was faster, but is not recommended") for note in advice.notes)
    assert "the fastest that keeps to the limits" in advice.sentence


def test_noise_is_no_difference():
    world = World({"mqa": 0.97}, noise={"mqa": [0.8, 1.2, 1.0, 0.9, 1.1]})
    advice = advise_in(world, mechanisms=("mqa",))
    assert advice.winner == "standard"
    assert {place.rank for place in advice.places} == {1}
    assert "no faster beyond noise; ties with standard" in advice.find("mqa").reason


def test_budget_limits_what_is_measured():
    world = World({}, wall=1.0)
    advice = advise_in(world, mechanisms=(), minutes=1.0)
    assert advice.seconds <= 60.0
    left = [place for place in advice.places if place.status == "not measured"]
    assert left
    assert all(p.reason.startswith("not measured: the budget ended before its turn") for p in left)
    assert all(p.rank is None and p.seconds is None for p in left)
    assert any(f"{len(left)} compositions were not measured" in note for note in advice.notes)


def test_packings_and_mechanisms_take_turns():
    world = World({}, wall=1.0)
    advice = advise_in(world, mechanisms=(), minutes=2.0)
    names = [place.name for place in advice.places if place.rank is not None]
    bits = {(Composition.parse(n).memory, Composition.parse(n).weights) for n in names}
    assert len(bits) >= 4


def test_too_few_rounds_stay_with_standard():
    world = World({"mqa": 0.5}, wall=20.0)
    advice = advise_in(world, minutes=1.0)
    assert (advice.winner, advice.known) == ("standard", False)
    assert advice.sentence.startswith("Stay with standard, which needs no evidence: 1 of 3 rounds")
    assert advice.python
    assert advice.find("standard").seconds.median == 1.0
    advice = advise_in(World({"mqa": 0.5}, wall=20.0), minutes=1.0, latency=0.5)
    assert advice.winner is None
    assert advice.sentence.startswith("Nothing is recommended: 1 of 3 rounds, and standard ")
    assert (advice.python, advice.cli) == ((), ())


def test_no_time_measures_nothing():
    world = World({}, wall=1.0)
    clock = iter(range(0, 100_000, 100))
    advice = advise(request(minutes=1.0), clock=lambda: next(clock), measure=world.measure)
    assert advice.winner == "standard"
    assert advice.sentence.startswith("Stay with standard, which needs no evidence: 0 of 3 rounds")
    assert any("Standard was not measured" in note for note in advice.notes)


def test_crossovers_are_measured():
    class Crossing(World):
        def measure(self, one, length):
            self.each["mqa"] = 0.5 if length >= 32 else 1.5
            return super().measure(one, length)

    advice = advise_in(Crossing({}), mechanisms=("mqa", "efficient"), length=256)
    crossover = advice.find("mqa").crossover
    assert crossover.at == 32
    assert [length for length, _ in crossover.ratios] == [16, 32, 64, 128, 256]
    assert advice.find("efficient").crossover.at is None
    assert any("faster than Standard from 32 on" in note for note in advice.notes)


def test_memory_limit_rules_out_oversized_candidates():
    world = World({"efficient": 2.0, "mqa": 0.5})
    plain = advise_in(World({}))
    enough = plain.find("mqa").needs.total
    advice = advise_in(world, memory=enough)
    standard = advice.find("standard")
    assert standard.status == "ruled out"
    assert standard.rank is not None  # the yardstick is measured all the same
    assert "needs " in standard.reason
    assert "more than" in standard.reason
    assert advice.find("gqa").rank is None
    assert advice.find("gqa").reason.startswith("needs ")
    assert advice.winner == "mqa"


def test_nearest_candidate_is_named_if_nothing_fits():
    advice = advise_in(World({}), memory=1000)
    assert advice.winner is None
    assert advice.sentence.startswith("Nothing fits 1.00 kB: the nearest, efficient, needs ")
    assert "weights" in advice.sentence


def test_nearest_candidate_is_named_if_nothing_is_fast_enough():
    advice = advise_in(World({"mqa": 0.5}), latency=0.03)
    assert advice.winner is None
    assert advice.sentence == (
        "Nothing measured is fast enough: the nearest is mqa, 500 ms a token are more than 30 ms."
    )
    assert "more than 30 ms" in advice.find("mqa").reason


def test_candidates_slower_than_an_oversized_standard_are_not_recommended():
    plain = advise_in(World({}))
    advice = advise_in(World(dict.fromkeys(NAMES, 1.5)), memory=plain.find("efficient").needs.total)
    assert advice.winner is None
    assert advice.sentence.startswith(
        "Nothing that keeps to the limits is as fast as Standard, which does not keep to them: "
    )


def test_what_is_shown_to_lose_too_much_comes_last(monkeypatch):
    lost, kept = evidence("does not suffice", "-5.00 points"), evidence("suffices")
    monkeypatch.setattr(
        Library, "find", lambda _, one: (lost,) if one.mechanism == "mqa" else (kept,)
    )
    names = ("mqa", "efficient")
    world = {"mqa": 0.5, "efficient": 0.7}
    for quality in (None, 0.01):
        advice = advise_in(World(world), mechanisms=names, quality=quality)
        assert advice.winner == "efficient"
        assert [place.name for place in advice.places] == ["efficient", "standard", "mqa"]
        assert advice.find("mqa").rank == 3
    assert "loses too much: does not suffice at 1.0 points: -5.00" in advice.find("mqa").reason
    monkeypatch.setattr(Library, "find", lambda *_: (lost,))
    advice = advise_in(World(world), mechanisms=names, quality=0.01)
    assert advice.sentence.startswith("Everything measured loses too much: mqa: does not suffice")
    several = tuple(dataclasses.replace(lost, seeds=seeds) for seeds in range(3, 8))
    monkeypatch.setattr(Library, "find", lambda *_: several)
    mqa = advise_in(World(world), mechanisms=names).find("mqa")
    assert mqa.evidence_told.count("a task (x.json)") == 3
    assert mqa.evidence_told.endswith("; and 2 more, which --json lists")
    assert len(mqa.evidence) == 5
    monkeypatch.setattr(Library, "find", lambda *_: several[:3])
    assert "more" not in advise_in(World(world), mechanisms=names).find("mqa").evidence_told


def test_changes_of_what_loses_lose_too_unless_some_layers_are_standard(monkeypatch):
    lost = evidence("does not suffice", "-4.12 points")
    monkeypatch.setattr(
        Library,
        "find",
        lambda _, one: (lost,) if one.mechanism == "efficient" and not one.changes else (),
    )
    names = ("efficient+kv:1+window:64+weights:8", "efficient+softmax:2")
    advice = advise_in(World(dict.fromkeys(names, 0.5)), mechanisms=names)
    assert advice.winner == "standard"
    assert "efficient+softmax:2 takes 0.50x Standard's time" in advice.sentence
    reason = advice.find(names[0]).reason
    assert "loses too much: efficient alone does not suffice at 1.0 points: -4.12" in reason


def test_interruption_leaves_advice_from_the_finished_rounds():
    advice = advise_in(World({"mqa": 0.5}, stop_after=30))
    assert advice.interrupted
    assert advice.notes[0].startswith("Interrupted")
    assert advice.winner == "mqa"
    assert advice.find("mqa").rounds == 4


def test_failed_measurement_is_reported():
    class Refusing(World):
        def measure(self, one, length):
            if one.name == "mqa":
                raise ConfigError("it does not pack.")
            return super().measure(one, length)

    advice = advise_in(Refusing({"efficient": 0.5}), mechanisms=("mqa", "efficient"))
    assert advice.find("mqa").reason == "not measured: it does not pack."


def test_others_are_measured_where_standard_does_not_fit(monkeypatch):
    plain = advise_in(World({}))
    enough = plain.find("mqa").needs.total
    monkeypatch.setattr(sys.modules["suffice.measure.advise.advise"], "_memory", lambda _: enough)
    advice = advise_in(World({"mqa": 0.5, "efficient": 0.7}))
    assert advice.find("standard").status == "ruled out"
    assert advice.find("standard").seconds is None
    assert advice.winner == "mqa"
    assert "standard was not measured" in advice.sentence


def test_equal_measures_give_equal_advice():
    one, two = (advise_in(World({"mqa": 0.5})).to_json() for _ in range(2))
    assert one == two
    json.dumps(one, allow_nan=False)
    assert one["places"][0]["name"] == "mqa"


class Recorder:
    def __init__(self):
        self.steps, self.said = [], []

    def cell(self, description):
        """Begin."""

    def step(self, done, total):
        self.steps.append(done / total)

    def say(self, text):
        self.said.append(text)


def test_progress_is_reported():
    world, recorder = World({}), Recorder()
    advise(
        request(), clock=world.clock, measure=world.measure, step=lambda *_: 0.06, progress=recorder
    )
    assert recorder.said[0] == "warming up standard"
    assert any(text.startswith("round 2: ") for text in recorder.said)
    assert any(text.startswith("16 long: warming up") for text in recorder.said)
    assert sorted(recorder.steps) == recorder.steps
    assert max(recorder.steps) <= 1.0


def test_a_small_real_run():
    request_ = Request(
        task="image", model="digits_vit", mechanisms=("efficient", "performer"), minutes=0.05
    )
    advice = advise(request_)
    measured = {p.name: p for p in advice.places if p.rank is not None}
    assert "standard" in measured
    assert all(p.seconds.median > 0.0 for p in measured.values())
    if advice.winner is not None:
        least = min(p.ratio.median for p in measured.values() if p.status == "measured")
        chosen = measured[advice.winner]
        assert chosen.ratio.median == least or chosen.name == "standard"
        assert not chosen.ratio.low > 1.0
    assert advice.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert advice.machine["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("name", ["standard", "efficient+window:16+memory:8", "linear"])
def test_language_models_are_timed(name):
    base = lm_base()
    sampler = CandidateTimer(base, torch.device("cpu"))
    one = Candidate.of(Composition.parse(name), base)
    for length in (16, 64):
        sample = sampler(one, length)
        assert 0.0 < sample.each < sample.first * 100
    assert len(sampler.models) == 1


def test_packed_models_are_timed():
    base = lm_base()
    sampler = CandidateTimer(base, torch.device("cpu"))
    one = Candidate.of(Composition.parse("standard+weights:8"), base)
    assert sampler(one, 16).each > 0.0
    plain = Candidate.of(Composition.parse("standard"), base)
    assert sampler.model(plain, 16) is not sampler.model(one, 16)
    shared = dict(sampler.model(plain, 16).named_parameters())
    assert all(not p.requires_grad for p in shared.values())


def test_models_share_tensors_of_equal_shape():
    base = lm_base()
    sampler = CandidateTimer(base, torch.device("cpu"))
    one, two = (
        sampler.model(Candidate.of(Composition.parse(name), base), 64)
        for name in ("standard", "efficient")
    )
    assert one.blocks[0].mlp.up.weight is not two.blocks[0].mlp.up.weight
    assert one.blocks[0].mlp.up.weight.data_ptr() == two.blocks[0].mlp.up.weight.data_ptr()
    assert bool((one.norm.weight == 1).all())
    assert float(one.blocks[0].attention.q_proj.weight.std()) == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize("name", ["standard", "efficient+window:8"])
def test_translators_are_timed(name):
    base = translator_base()
    sampler = CandidateTimer(base, torch.device("cpu"))
    sample = sampler(Candidate.of(Composition.parse(name), base), 32)
    assert sample.each > 0.0
    assert sample.first > 0.0


def test_readers_are_timed():
    for request_ in (
        Request(task="classify", length=24),
        Request(task="image", model="digits_vit"),
    ):
        base = base_of(request_)
        sampler = CandidateTimer(base, torch.device("cpu"))
        one = Candidate.of(Composition.parse("super_attention"), base)
        assert sampler(one, base.length).each > 0.0
        assert sampler(one, 4 if request_.task == "image" else 12).first is None
        assert len(sampler.models) == 1 + (request_.task == "image")


def test_long_calls_are_timed_once(monkeypatch):
    monkeypatch.setattr("suffice.measure.advise.timing.MIN_SECONDS", 0.0)
    calls = []
    sampler = CandidateTimer(lm_base(), torch.device("cpu"))
    assert sampler._seconds(lambda: calls.append(1)) >= 0.0
    assert calls == [1]
    monkeypatch.setattr("suffice.measure.advise.timing.MIN_SECONDS", 1e-2)
    sampler._seconds(lambda: calls.append(1))
    assert len(calls) > 10


def test_gpu_is_synchronised_and_has_its_own_memory(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=7)
    )
    device = torch.device("cuda")
    assert now(device) > 0.0
    assert waited == [device]
    module = sys.modules["suffice.measure.advise.advise"]
    assert module._memory(device) == 7
    assert module._memory(torch.device("cpu")) > 10**6


def test_device_here_prefers_the_gpu(monkeypatch):
    module = sys.modules["suffice.measure.advise.advise"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module._device("here") == torch.device("cpu")
    assert module._device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert module._device("here").type == "cuda"
