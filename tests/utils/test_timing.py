from __future__ import annotations

import gc
import os
from collections import Counter

import pytest
import torch

from suffice.errors import ConfigError
from suffice.utils import timing
from suffice.utils.timing import Times, interleave, peak_bytes, ratio, summarise_times


class Clock:
    """A clock that only the timed functions move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.collecting: list[bool] = []

    def costs(self, name: str, seconds: float):
        def call() -> None:
            self.now += seconds
            self.calls.append(name)
            self.collecting.append(gc.isenabled())

        return call


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing, "perf_counter", lambda: made.now)
    return made


def test_every_round_gives_the_time_of_one_call(clock):
    functions = {"slow": clock.costs("slow", 0.004), "fast": clock.costs("fast", 0.001)}
    times = interleave(functions, rounds=6, warmup=2, min_seconds_per_sample=0.02)
    assert {name: len(values) for name, values in times.items()} == {"slow": 6, "fast": 6}
    assert times["slow"] == pytest.approx([0.004] * 6, rel=1e-9)
    assert times["fast"] == pytest.approx([0.001] * 6, rel=1e-9)


def test_samples_are_interleaved_and_last_long_enough(clock):
    functions = {"a": clock.costs("a", 2**-8), "b": clock.costs("b", 2**-10)}
    interleave(functions, rounds=4, warmup=0, min_seconds_per_sample=2**-6)
    repeats = {"a": 4, "b": 16}
    orders = list(timing._orders(["a", "b"], 4, seed=0))
    expected = [name for order in orders for name in order for _ in range(repeats[name])]
    assert clock.calls[-80:] == expected
    assert len(expected) == 80


def test_warm_up_comes_first_and_is_not_timed(clock):
    first = {"left": 3}

    def call() -> None:
        clock.now += 5.0 if first["left"] > 0 else 0.01
        first["left"] -= 1

    times = interleave({"a": call}, rounds=3, warmup=3, min_seconds_per_sample=0.01)
    assert times["a"] == pytest.approx([0.01] * 3, rel=1e-9)


def test_a_long_call_is_made_once_per_sample(clock):
    interleave({"a": clock.costs("a", 7.0)}, rounds=3, warmup=1, min_seconds_per_sample=0.01)
    assert len(clock.calls) == 1 + 1 + 3


def test_each_function_stands_at_each_place_equally_often():
    orders = list(timing._orders(["a", "b", "c"], 9, seed=0))
    for place in range(3):
        assert Counter(order[place] for order in orders) == {"a": 3, "b": 3, "c": 3}
    assert orders == list(timing._orders(["a", "b", "c"], 9, seed=0))
    assert any(orders != list(timing._orders(["a", "b", "c"], 9, seed=s)) for s in range(1, 5))


def test_garbage_collection_pauses_during_samples_and_returns(clock):
    call = clock.costs("a", 1.0)
    assert gc.isenabled()
    interleave({"a": call}, rounds=2, warmup=1, min_seconds_per_sample=0.01)
    assert clock.collecting == [True, True, False, False]
    assert gc.isenabled()


def test_garbage_collection_returns_after_an_error(clock):
    calls = []

    def fail_third() -> None:
        clock.now += 1.0
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("third")

    with pytest.raises(RuntimeError, match="third"):
        interleave({"a": fail_third}, rounds=5, warmup=1, min_seconds_per_sample=0.1)
    assert gc.isenabled()


def test_cuda_is_waited_for_around_each_sample(clock, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    functions = {"a": clock.costs("a", 1.0)}
    interleave(functions, rounds=2, warmup=0, min_seconds_per_sample=0.1, device="cuda:0")
    assert waited == ["cuda:0"] * 6
    waited.clear()
    interleave(functions, rounds=2, warmup=0, min_seconds_per_sample=0.1)
    assert waited == []


@pytest.mark.parametrize("change", [{"rounds": 0}, {"warmup": -1}, {"min_seconds_per_sample": 0.0}])
def test_impossible_settings_are_refused(change):
    settings = {"rounds": 1, "warmup": 0, "min_seconds_per_sample": 0.1, **change}
    with pytest.raises(ConfigError, match="cannot be timed; give rounds >= 1, warmup >= 0 and"):
        interleave({}, **settings)


def test_median_and_quartiles():
    assert summarise_times([5.0, 1.0, 3.0, 2.0, 4.0]) == Times(low=2.0, median=3.0, high=4.0)
    assert summarise_times([2.5]) == Times(low=2.5, median=2.5, high=2.5)


def test_no_samples_are_refused():
    with pytest.raises(ConfigError, match="no samples to summarise; time at least one round"):
        summarise_times([])


def test_ratio_is_taken_round_by_round():
    # a slow minute in round two slows both; the ratio of medians would be 0.75
    assert ratio([1.0, 10.0, 1.5], [2.0, 20.0, 2.0]) == 0.5


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_that_do_not_match_are_refused(a, b):
    with pytest.raises(ConfigError, match="rounds cannot be compared; time both in the same"):
        ratio(a, b)


MIB = 2**20


def block() -> torch.Tensor:
    return torch.empty(MIB // 4)


def test_two_alive_at_once():
    def two():
        a = block()
        b = block()
        return a, b

    assert peak_bytes(two) == 2 * MIB


def test_freed_before_the_next_is_not_added():
    def in_turn():
        for _ in range(5):
            kept = block()
            del kept

    assert peak_bytes(in_turn) == MIB


def test_the_peak_in_the_middle_counts():
    def hill():
        a, b = block(), block()
        c = block()
        del a, b
        return c

    assert peak_bytes(hill) == 3 * MIB


def test_freeing_what_was_there_before_is_no_peak():
    kept = [block(), block()]
    assert peak_bytes(kept.clear) == 0


@pytest.mark.parametrize("level", [None, "3"])
def test_the_environment_is_left_as_it_was(monkeypatch, level):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    seen = []
    peak_bytes(lambda: seen.append(os.environ["KINETO_LOG_LEVEL"]))
    assert seen == [level or "6"]
    assert os.environ.get("KINETO_LOG_LEVEL") == level


@pytest.mark.parametrize(("highest", "peak"), [(5000, 4000), (500, 0)])
def test_cuda_reads_the_peak_of_its_allocator(monkeypatch, highest, peak):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: highest)
    assert peak_bytes(lambda: done.append("call"), device="cuda") == peak
    assert done == ["wait", "reset", "call", "wait"]
