"""Budgets, and choices held against trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from suffice.convert.search import Limit, budget_of
from suffice.convert.search.problem import Program
from suffice.errors import ConfigError

LAYERS, OPTIONS = 4, 5


def program(seed, share=0.8, **bounds):
    draws = Random(seed)

    def table():
        return [[draws.random() for _ in range(OPTIONS)] for _ in range(LAYERS)]

    costs = {"state": table(), "latency": table()}
    base = {"state": 0.0, "latency": 1.0}
    bounds = bounds or {"state": share * LAYERS / 2, "latency": 1.0 + share * LAYERS / 2}
    return Program(scores=table(), costs=costs, base=base, bounds=bounds)


def everything(one):
    return list(product(range(OPTIONS), repeat=LAYERS))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_that_meets_the_bounds_is_found(seed):
    one = program(seed)
    legal = [picks for picks in everything(one) if one.meets(picks)]
    assert 0 < len(legal) < OPTIONS**LAYERS
    assert one.solve() == min(legal, key=one.score)


def test_a_bound_that_is_just_met_is_met():
    one = Program(
        scores=[[0.0, 1.0, 3.0]] * 4,
        costs={"state": [[4096, 2048, 1024]] * 4},
        base={"state": 0.0},
        bounds={"state": 4096.0},
    )
    assert one.solve() == (2, 2, 2, 2)
    assert one.cost("state", (2, 2, 2, 2)) == 4096


def test_small_scores_are_distinguished():
    one = Program(
        scores=[[0.0, 3e-9, 1e-9], [0.0, 5e-9, 1e-9]],
        costs={"state": [[2.0, 1.0, 1.0]] * 2},
        base={"state": 0.0},
        bounds={"state": 2.0},
    )
    assert one.solve() == (2, 2)


@pytest.mark.parametrize("seed", range(3))
def test_the_nearest_to_impossible_bounds(seed):
    one = program(seed, state=0.2, latency=1.1)
    assert one.solve() is None

    def stretch(picks):
        return max(one.cost(name, picks) / bound for name, bound in one.bounds.items())

    assert stretch(one.nearest()) == pytest.approx(min(map(stretch, everything(one))))


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_differ_in_two_layers_at_most(seed):
    one = program(seed)
    picks = one.solve()
    near = [
        other
        for other in everything(one)
        if one.meets(other) and 1 <= sum(a != b for a, b in zip(picks, other, strict=True)) <= 2
    ]
    assert one.neighbours(picks, 10) == sorted(near, key=one.score)[:10]


NEEDS = {(1, 3): (0, 0), (3, 3): (2, 0), (3, 4): (0, 0)}


@pytest.mark.parametrize("seed", range(6))
def test_options_that_go_with_others(seed):
    one = replace(program(seed), needs=NEEDS)
    legal = [
        picks
        for picks in everything(one)
        if program(seed).meets(picks)
        and all(picks[at] != option or picks[o] == n for (at, option), (o, n) in NEEDS.items())
    ]
    assert legal == [picks for picks in everything(one) if one.meets(picks)]
    best = min(legal, key=one.score)
    assert one.solve() == best
    near = [p for p in legal if 1 <= sum(a != b for a, b in zip(best, p, strict=True)) <= 2]
    assert one.neighbours(best, 10) == sorted(near, key=one.score)[:10]
    draws = Random(0)
    assert all(one.random(draws) in legal for _ in range(10))


def test_one_layer_has_neighbours():
    one = Program(
        scores=[[0.0, 1.0, 2.0]],
        costs={"state": [[3.0, 2.0, 1.0]]},
        base={"state": 0.0},
        bounds={"state": 2.0},
    )
    assert one.neighbours((1,), 5) == [(2,)]


def test_drawn_ones_meet_the_bounds():
    for share in (0.9, 0.7):
        one = program(2, share)
        draws = Random(0)
        found = {one.random(draws) for _ in range(10)}
        assert all(one.meets(picks) for picks in found)
        assert len(found) > 1
    assert program(0, state=0.2, latency=1.1).random(Random(0)) is None


UNITS = {
    "state<=25%": (0.25, True),
    "state <= 0.5x": (0.5, True),
    "state<=64kB": (64e3, False),
    "state<=2KiB": (2048.0, False),
    "latency<=0.8x": (0.8, True),
    "latency<=2.5ms": (2.5e-3, False),
    "latency<=80us": (80e-6, False),
    "parameters<=10M": (10e6, False),
    "parameters<=1000": (1000.0, False),
    "loss<=105%": (1.05, True),
    "loss<=1.9": (1.9, False),
    "divergence<=1e-3": (1e-3, False),
}


@pytest.mark.parametrize("text", UNITS)
def test_units(text):
    (limit,) = budget_of(text)
    value, relative = UNITS[text]
    assert limit == Limit(
        name=text.split("<")[0].strip(), value=pytest.approx(value), relative=relative
    )
    assert limit.of(200.0) == pytest.approx(200.0 * value if relative else value)
    assert budget_of(str(limit)) == (
        Limit(name=limit.name, value=pytest.approx(value), relative=relative),
    )


def test_several_bounds():
    found = budget_of("state<=25%,latency<=0.8x , divergence<=0.01")
    assert [str(one) for one in found] == ["state<=25%", "latency<=80%", "divergence<=0.01"]
    assert str(budget_of("state<=0.5B")[0]) == "state<=0.5B"


WRONG = {
    "": r"budget '' is not understood at ''; write bounds such as state<=25%, latency",
    "state<25%": "is not understood at 'state<25%'",
    "state<=25%, fast": "is not understood at 'fast'",
    "stat<=25%": "unknown budget 'stat'; did you mean 'state'",
    "state<=0": "budget 'state<=0': give a number above 0",
    "state<=25": r"state has no unit 'none'; legal: %, x, B, kB, MB, GB, KiB, MiB, GiB",
    "latency<=5kB": r"latency has no unit 'kB'; legal: %, x, s, ms, us",
    "divergence<=5%": "divergence has no unit '%'; legal: none",
    "latency<=1x, state<=25%, state<=9%": "bounds state twice; give one bound of it",
}


@pytest.mark.parametrize("text", WRONG)
def test_illegal_budgets_are_refused(text):
    with pytest.raises(ConfigError, match=WRONG[text]):
        budget_of(text)
