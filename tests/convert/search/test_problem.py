"""Choosing: held against trying everything."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from suffice.convert.search.problem import Program

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


def test_small_scores_are_told_apart():
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
