"""Random(keys, length, seed): each query sees `keys` distinct positions, drawn once for good.

Draw j of r comes from the j-th of r equal parts of the candidates: 0..length - 1, or where no
length is given 0..q.
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.patterns import Causal, Random, Window
from suffice.testing import assert_close, normal

from .loops import built, gradients_agree, outputs


def seen(pattern, queries, keys):
    """The keys that each query sees, as lists."""
    mask = pattern.mask(queries, keys)
    return [row.nonzero().flatten().tolist() for row in mask]


@pytest.mark.parametrize("keys", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 2, 6, 40])
@pytest.mark.parametrize("seed", [0, 5])
def test_exactly_so_many_keys_in_both_directions(keys, length, seed):
    pattern = Random(keys, length=length, seed=seed)
    assert [len(row) for row in seen(pattern, length, length)] == [min(keys, length)] * length
    assert pattern.pairs(length, length) == length * min(keys, length)
    assert not pattern.causal
    assert pattern.max_length == length


@pytest.mark.parametrize("keys", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [0, 5])
def test_exactly_so_many_keys_of_the_past(keys, seed):
    pattern = Random(keys, seed=seed)
    rows = seen(pattern, 40, 40)
    assert [len(row) for row in rows] == [min(keys, q + 1) for q in range(40)]
    assert all(max(row) <= q for q, row in enumerate(rows))
    assert pattern.pairs(40, 40) == sum(map(len, rows))
    assert pattern.causal
    assert pattern.max_length is None


@pytest.mark.parametrize("keys", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [None, 40])
def test_one_draw_from_each_part(keys, length):
    for q, row in enumerate(seen(Random(keys, length=length, seed=2), 40, 40)):
        n = length or q + 1
        r = min(keys, n)
        for j, key in enumerate(row):
            assert n * j // r <= key < n * (j + 1) // r


@pytest.mark.parametrize("length", [None, 50])
def test_the_same_in_one_pass_and_in_streaming(length):
    pattern = Random(3, length=length, seed=1)
    whole = pattern.mask(50, 50)
    for queries, keys in [(1, 1), (1, 50), (7, 50), (7, 33), (33, 33), (1, 20)]:
        assert torch.equal(pattern.mask(queries, keys), whole[keys - queries : keys, :keys])


@pytest.mark.parametrize("length", [None, 50])
def test_a_function_of_positions_alone(length):
    pattern = Random(3, length=length, seed=1)
    whole = pattern.mask(50, 50)
    q, k = torch.tensor([31, 4, 4, 49]), torch.tensor([3, 30, 2, 1, 48, 0, 4])
    for dtype in (torch.int32, torch.int64):
        got = pattern.allowed(q[:, None].to(dtype), k[None].to(dtype))
        assert torch.equal(got, whole[q][:, k])
    batch = pattern.allowed(torch.stack([q, q + 0])[..., None], torch.stack([k, k])[:, None])
    assert torch.equal(batch[1], whole[q][:, k])


def test_the_generator_of_torch_plays_no_part():
    torch.manual_seed(1)
    before, state = Random(3, seed=4).mask(30, 30), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(Random(3, seed=4).mask(30, 30), before)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("length", [None, 64])
def test_seeds_draw_differently(length):
    masks = [Random(2, length=length, seed=s).mask(64, 64) for s in (0, 1, 2, 2**31, 2**40 + 1)]
    for i, a in enumerate(masks):
        for b in masks[i + 1 :]:
            assert (a != b).any(dim=1)[8:].float().mean() > 0.8


def chi_square(counts, expected):
    """How far the counts stray, in standard deviations of a chi-square of their freedom."""
    freedom = len(counts) - 1
    total = math.fsum((c - expected) ** 2 / expected for c in counts)
    return (total - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("length", [96, None])
@pytest.mark.parametrize("keys", [1, 3])
def test_every_candidate_is_equally_likely(length, keys):
    """Over many seeds, for one query; and over many queries, for one seed."""
    many = 1500
    counts = [0] * 96
    for seed in range(many):
        allowed = Random(keys, length=length, seed=seed).allowed(
            torch.tensor([[95]]), torch.arange(96)[None]
        )
        for key in allowed[0].nonzero().flatten().tolist():
            counts[key] += 1
    for j in range(keys):
        part = counts[96 * j // keys : 96 * (j + 1) // keys]
        assert sum(part) == many
        assert abs(chi_square(part, many / len(part))) < 4


def test_queries_draw_independently():
    """Each key is seen about equally often, and neighbours share keys no more than by chance."""
    pattern, size = Random(1, length=64, seed=9), 64
    draws = [row[0] for row in seen(pattern, size, size)]
    for seed in range(10, 60):
        draws += [row[0] for row in seen(Random(1, length=64, seed=seed), size, size)]
    counts = [draws.count(key) for key in range(size)]
    assert abs(chi_square(counts, len(draws) / size)) < 4
    steps = [(b - a) % size for a, b in zip(draws, draws[1:], strict=False)]
    counts = [steps.count(step) for step in range(size)]
    assert abs(chi_square(counts, len(steps) / size)) < 4


def test_draws_of_one_query_are_independent():
    """Which place of its part each of two draws takes says nothing of the other."""
    places = [0] * 64
    for seed in range(1500):
        allowed = Random(2, length=16, seed=seed).allowed(
            torch.tensor([[5]]), torch.arange(16)[None]
        )
        first, second = allowed[0].nonzero().flatten().tolist()
        places[8 * first + second - 8] += 1
    assert abs(chi_square(places, 1500 / 64)) < 4


@pytest.mark.parametrize("length", [None, 12])
def test_saved_with_the_spec(length):
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=Random(3, length=length, seed=77))
    again = AttentionSpec.from_json(spec.to_json())
    assert again == spec
    assert torch.equal(again.pattern.mask(12, 12), spec.pattern.mask(12, 12))


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
@pytest.mark.parametrize("length", [None, 9])
@pytest.mark.parametrize("beside", [False, True])
def test_layer(rows, length, beside):
    pattern = Random(2, length=length, seed=3)
    table = pattern.mask(9, 9).tolist()
    near = (lambda t, s: 0 <= t - s < 2) if beside else (lambda t, s: False)
    if beside:
        pattern = pattern | (Window(2) & Causal())
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, rows, 8, seed=rows)
    assert_close(layer(x), outputs(layer, x, lambda t, s: table[t][s] or near(t, s)))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Random(2, length=6, seed=1)))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
