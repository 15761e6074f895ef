"""Rounds within a budget, on a clock that the test moves, and samples of real models."""

from __future__ import annotations

import pytest
import torch

from suffice.choose import Composition, Request, base_of
from suffice.choose.candidates import Candidate
from suffice.choose.timing import (
    HEAT,
    MAX_ROUNDS,
    MIN_ROUNDS,
    ROUNDS,
    CandidateTimer,
    Sample,
    Timings,
)
from suffice.errors import ConfigError
from suffice.utils.timing import Times

from .worlds import World, lm_base, translator_base

CPU = torch.device("cpu")


def timed(world, seconds, names, refused=()):
    def prepare(name):
        if name in refused:
            raise ConfigError(f"{name} cannot be packed.")
        return lambda: world.sample(name)

    timings = Timings(prepare, lambda *_: None, world.clock)
    timings.run(names, seconds)
    return timings


def test_candidates_are_timed_with_standard_in_the_same_rounds():
    world = World({"standard": 4.0, "a": 2.0, "b": 8.0}, wall=1.0, noise={"standard": [1.0, 0.5]})
    timings = timed(world, 1000.0, ["standard", "a", "b"])
    assert {len(timings.samples[name]) for name in "ab"} == {MAX_ROUNDS}
    ones = [sample.each for sample in timings.baseline["a"]]
    expected = sorted(2.0 / second for second in ones)
    assert timings.ratio("a").median == expected[len(expected) // 2]
    assert timings.of("b") == Times(low=8.0, median=8.0, high=8.0)
    assert set(ones) == {2.0, 4.0}
    one_heat = world.taken[3 + 3 :][: 3 * ROUNDS]
    assert {world.taken[3 + 3 + 3 * n : 6 + 3 * n + 3][0] for n in range(3)} == {
        "standard",
        "a",
        "b",
    }
    assert all(sorted(one_heat[n : n + 3]) == ["a", "b", "standard"] for n in range(0, 9, 3))


def test_the_next_few_follow_until_the_time_is_used_up():
    names = ["standard", *"abcdefghijklmnop"]
    world = World({}, wall=1.0)
    timings = timed(world, 100.0, names)
    first = names[1:HEAT]
    assert list(timings.samples)[:HEAT] == ["standard", *first]
    assert HEAT < len(timings.samples) < len(names)  # the last ones were not reached
    assert all(len(timings.samples[n]) >= MIN_ROUNDS for n in timings.samples)
    assert world.now <= 100.0
    small = timed(World({}, wall=1.0), 12.0, names)
    assert [(name, len(taken)) for name, taken in small.samples.items()] == [
        ("standard", MIN_ROUNDS),
        ("a", MIN_ROUNDS),
    ]


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_too_little_time_leaves_the_first_calls(seconds):
    timings = timed(World({"standard": 3.0}, wall=1.0), seconds, ["standard", "a"])
    assert timings.samples == {}
    assert timings.of("standard").median == 3.0
    assert timings.of("a") is None
    assert timings.ratio("standard") is None


def test_what_fails_is_left_out_with_the_reason():
    timings = timed(World({}), 100.0, ["standard", "a", "b"], refused=("a",))
    assert timings.failed == {"a": "a cannot be packed."}
    assert set(timings.samples) == {"standard", "b"}
    alone = timed(World({"b": 2.0}), 100.0, ["a", "b"], refused=("a",))  # Standard does not fit
    assert alone.ratio("b") is None
    assert alone.key("b") == 2.0


def test_an_interruption_leaves_finished_rounds():
    world = World({"a": 0.5}, stop_after=4 + 2 * ROUNDS + 1)
    timings = Timings(lambda name: lambda: world.sample(name), lambda *_: None, world.clock)
    with pytest.raises(KeyboardInterrupt):
        timings.run(["standard", "a"], 1e6)
    assert len(timings.samples["a"]) == len(timings.baseline["a"]) == ROUNDS
    assert timings.ratio("a").median == 0.5


def test_reading_is_compared_where_there_is_any():
    timings = Timings(lambda _: None, lambda *_: None)
    timings.samples = {"a": [Sample(each=1.0, first=3.0)] * 2, "b": [Sample(each=1.0)]}
    timings.baseline = {"a": [Sample(each=1.0, first=2.0)] * 2, "b": [Sample(each=4.0)]}
    assert timings.ratio("a", "first").median == 1.5
    assert (timings.of("b", "first"), timings.ratio("b", "first")) == (None, None)
    assert timings.ratio("b").median == 0.25


LM, TRANSLATOR = lm_base(), translator_base()
READER = base_of(Request(task="classify", length=24))
IMAGE = base_of(Request(task="image", model="digits_vit"))


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *((LM, name) for name in ("standard", "efficient+window:16+memory:8", "linear")),
        (LM, "standard+weights:8"),
        *((TRANSLATOR, name) for name in ("standard", "efficient+window:8")),
        *((base, "super_attention") for base in (READER, IMAGE)),
    ],
)
def test_models_of_every_task_are_timed(base, name):
    timer, one = CandidateTimer(base, CPU), Candidate.of(Composition.parse(name), base)
    sample = timer.prepare(one)()
    assert sample.each > 0.0
    assert (sample.first is not None) is base.writes
    assert timer.step_seconds(one, 3) > 0.0


def test_models_share_tensors_of_equal_shape_unless_packed():
    base = lm_base()
    timer = CandidateTimer(base, CPU)
    one, two, packed = (
        timer.model(Candidate.of(Composition.parse(name), base))
        for name in ("standard", "efficient", "standard+weights:8")
    )
    assert one.blocks[0].mlp.up.weight.data_ptr() == two.blocks[0].mlp.up.weight.data_ptr()
    assert (
        not hasattr(packed.blocks[0].mlp.up, "weight")
        or packed.blocks[0].mlp.up.weight.dtype != torch.float32
    )
    assert not any(weight.requires_grad for weight in one.parameters())
    assert bool((one.norm.weight == 1).all())
    assert float(one.blocks[0].attention.q_proj.weight.std()) == pytest.approx(0.25, rel=0.3)


def test_short_calls_are_repeated_and_long_ones_are_not(monkeypatch):
    timer, calls = CandidateTimer(lm_base(), CPU), []
    monkeypatch.setattr("suffice.choose.timing.MIN_SECONDS", 0.0)
    timer.seconds(lambda: calls.append(1))
    assert calls == [1]
    monkeypatch.setattr("suffice.choose.timing.MIN_SECONDS", 1e-2)
    assert timer.seconds(lambda: calls.append(1)) < 1e-3
    assert len(calls) > 10


def test_a_gpu_is_synchronised(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert CandidateTimer(lm_base(), torch.device("cuda")).now() > 0.0
    assert waited == ["cuda"]
