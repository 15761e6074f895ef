"""Rounds within a budget, on a clock that the test moves."""

from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.measure.advise.study import crossover, overlap
from suffice.measure.advise.timing import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    ROUNDS,
    Budget,
    Race,
    TimedSample,
    race_lengths,
    run,
)
from suffice.measure.timing import Times


class Track:
    """Each name has a time and a wall."""

    def __init__(self, each, wall=1.0):
        self.each, self.wall, self.now, self.taken = each, wall, 0.0, []

    def clock(self):
        return self.now

    def take(self, name):
        self.taken.append(name)
        self.now += self.wall[name] if isinstance(self.wall, dict) else self.wall
        if self.each[name] is None:
            raise ConfigError(f"{name} cannot be packed.")
        return TimedSample(each=self.each[name])


def ignore(*_):
    """Report nothing."""


def race_of(track, seconds, names, share=1.0, **options):
    race = Race(baseline=names[0])
    budget = Budget(seconds, track.clock)
    run(race, names, track.take, budget, share=share, report=ignore, **options)
    return race, budget


def test_a_large_budget_measures_all_in_turns():
    track = Track({"standard": 4.0, "a": 2.0, "b": 8.0})
    race, budget = race_of(track, 1000.0, ["standard", "a", "b"])
    assert race.rounds == MAX_ROUNDS
    assert race.ratio("a") == Times(low=0.5, median=0.5, high=0.5)
    assert race.times("b").median == 8.0
    rounds = [tuple(track.taken[at : at + 3]) for at in range(6, len(track.taken), 3)]
    assert rounds[:3] == [("standard", "a", "b"), ("a", "b", "standard"), ("b", "standard", "a")]
    assert race.failed == {}
    assert budget.used < 1000.0


def test_a_small_budget_measures_those_it_has_rounds_for():
    names = ["standard", *"abcdefgh"]
    track = Track(dict.fromkeys(names, 1.0))
    race, budget = race_of(track, 25.0, names)
    assert list(race.samples) == ["standard", "a", "b"]
    assert race.rounds >= ROUNDS
    assert budget.used <= 25.0


def test_two_candidates_may_have_fewer_rounds():
    track = Track({"standard": 1.0, "a": 1.0, "b": 1.0})
    race, budget = race_of(track, 10.5, ["standard", "a", "b"])
    assert list(race.samples) == ["standard", "a"]
    assert race.rounds == MIN_ROUNDS
    assert race.enough
    assert budget.used <= 10.5


def test_warm_up_counts_without_a_complete_round():
    track = Track({"standard": 3.0}, wall={"standard": 30.0})
    race, _ = race_of(track, 70.0, ["standard"])
    assert race.rounds == 1
    assert race.times("standard").median == 3.0
    assert not race.enough


def test_incomplete_round_does_not_count():
    walls = {"standard": 1.0, "a": 1.0}
    track = Track({"standard": 1.0, "a": 1.0}, walls)
    original = track.take

    def slower(name):
        if len(track.taken) == 10:
            walls["standard"] = walls["a"] = 50.0
        return original(name)

    track.take = slower
    race, _ = race_of(track, 60.0, ["standard", "a"])
    assert len({len(samples) for samples in race.samples.values()}) == 1
    assert race.rounds == 3


def test_failed_candidates_are_skipped_with_the_reason():
    track = Track({"standard": 1.0, "a": None, "b": 1.0})
    race, _ = race_of(track, 100.0, ["standard", "a", "b"])
    assert race.failed == {"a": "a cannot be packed."}
    assert set(race.samples) == {"standard", "b"}


def test_an_empty_budget_measures_nothing():
    track = Track({"a": 1.0})
    race = Race(baseline="standard")
    budget = Budget(1.0, track.clock)
    track.now = 5.0
    run(race, ["a"], track.take, budget, report=ignore)
    assert race.rounds == 0
    assert track.taken == []


def test_an_interruption_leaves_complete_rounds():
    track = Track({"standard": 1.0, "a": 0.5})
    original = track.take

    def take(name):
        if len(track.taken) == 9:
            raise KeyboardInterrupt
        return original(name)

    race = Race(baseline="standard")
    with pytest.raises(KeyboardInterrupt):
        run(race, ["standard", "a"], take, Budget(1e6, track.clock), report=ignore)
    assert race.rounds == 2
    assert race.ratio("a").median == 0.5


def test_reading_is_compared_where_there_is_any():
    race = Race(baseline="standard")
    race.samples = {
        "standard": [TimedSample(each=1.0, first=2.0)] * 2,
        "a": [TimedSample(each=1.0, first=3.0)] * 2,
    }
    assert race.first("a") == 3.0
    assert race.first_ratio("a").median == 1.5
    race.samples["b"] = [TimedSample(each=1.0)] * 2
    assert race.first("b") is None
    assert race.first_ratio("b") is None
    assert Race(baseline="standard", samples={"a": [TimedSample(each=1.0)]}).ratio("a") is None


def test_lengths_are_measured_from_the_shortest_on():
    taken, by_length, clock = [], {}, [0.0]

    def take(name, length):
        clock[0] += 1.0
        taken.append(length)
        fast = 0.5 if length >= 64 else 2.0
        return TimedSample(each=1.0 if name == "standard" else fast)

    budget = Budget(1000.0, lambda: clock[0])
    race_lengths(["standard", "a"], [16, 32, 64], take, budget, by_length, ignore)
    assert sorted(taken) == taken
    assert {length: one.median for length, one in by_length["a"].items()} == {
        16: 2.0,
        32: 2.0,
        64: 0.5,
    }
    assert crossover(by_length["a"]).at == 64
    assert crossover({16: by_length["a"][16]}).at is None


def test_a_length_the_budget_does_not_reach_is_absent():
    by_length, clock = {}, [0.0]

    def take(name, length):  # noqa: ARG001 - a sample is a sample
        clock[0] += 1.0
        return TimedSample(each=1.0)

    race_lengths(
        ["standard", "a"], [16, 32], take, Budget(13.0, lambda: clock[0]), by_length, ignore
    )
    assert list(by_length["a"]) == [16]


def test_a_crossover_holds_for_every_longer_input():
    fast = Times(low=0.7, median=0.8, high=0.9)
    slow = Times(low=1.0, median=1.0, high=1.1)
    assert crossover({16: fast, 32: slow, 64: fast}).at == 64
    assert crossover({16: fast, 32: fast}).at == 16
    assert crossover({16: fast, 32: slow}).at is None
    noisy = Times(low=0.8, median=0.9, high=1.1)
    assert crossover({16: fast, 32: noisy}).at is None


def test_quartiles_overlap_at_their_ends():
    one = Times(low=1.0, median=2.0, high=3.0)
    assert overlap(one, Times(low=3.0, median=4.0, high=5.0))
    assert not overlap(one, Times(low=3.1, median=4.0, high=5.0))
