"""The module behind an Alignment: starts, rows, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError, ShapeError
from suffice.mixing import Alignment, NoMixing, RowLayout
from suffice.mixing.alignments import AlignmentMap
from suffice.testing import assert_close, drawn, normal

ALL_REAL = RowLayout()


def map_of(alignment, *, heads=2, causal=False) -> AlignmentMap:
    return alignment.build(num_kv_heads=heads, causal=causal, device=None, dtype=torch.float64)


def run(made, v, rows=ALL_REAL):
    """V', of keys that must come back as they are."""
    k = normal(*v.shape[:3], 3, seed=9)
    same, mixed = made(k, v, rows)
    assert same is k
    return mixed


@pytest.mark.parametrize("length", [0, -1])
def test_lengths(length):
    with pytest.raises(ConfigError, match=r"Alignment\(length=.*\): give the longest input, >= 1"):
        Alignment(length)


@pytest.mark.parametrize("length", [2.0, "9", None, True])
def test_lengths_that_are_no_whole_numbers(length):
    with pytest.raises(ConfigError, match=r"Alignment: length=.* is not a whole number"):
        Alignment(length)


def test_starts():
    with pytest.raises(ConfigError, match="'eye'"):
        Alignment(9, init="eye")


@pytest.mark.parametrize("init", ["glorot", "identity", "orthogonal"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_shapes_and_triangle(init, causal, per_head):
    alignment = Alignment(9, per_head=per_head, init=init)
    made = map_of(alignment, causal=causal)
    maps = 2 if per_head else 1
    assert made.weight.shape == (maps, 9, 9)
    assert made.bias.shape == (maps, 9)
    assert torch.isfinite(made.weight).all()
    assert (made.bias == 0).all()
    assert alignment.parameters(2) == sum(p.numel() for p in made.parameters())
    assert alignment.max_length == 9
    if causal:
        assert torch.equal(made.weight, made.weight.tril())
    if init == "identity":
        assert torch.equal(made.weight[0], torch.eye(9, dtype=torch.float64))
    if init == "orthogonal" and not causal:
        assert_close(made.weight[0] @ made.weight[0].T, torch.eye(9, dtype=torch.float64))


def test_heads_start_differently():
    made = map_of(Alignment(9, per_head=True))
    assert not torch.equal(made.weight[0], made.weight[1])


def test_a_glorot_start_keeps_the_scale_of_values():
    """Row t of a causal map has t + 1 terms, scaled so that its output varies as any other."""
    length = 512
    bound = 6 / (2 * length)
    for causal in (False, True):
        weight = map_of(Alignment(length), causal=causal).weight[0].detach()
        spread = weight.square().sum(-1)
        want = bound / 3 * length
        rows = torch.stack([spread[i : i + 64].mean() for i in range(64, length, 64)])
        assert ((rows / want - 1).abs() < 0.15).all()


def test_no_bias():
    made = map_of(Alignment(9, bias=False))
    assert made.bias is None
    assert list(made.state_dict()) == ["weight"]
    assert Alignment(9, bias=False).parameters(2) == 81
    assert Alignment(9, per_head=True, bias=False).parameters(2) == 162


def test_too_many_keys():
    with pytest.raises(ShapeError, match="10 keys"):
        run(map_of(Alignment(9)), torch.zeros(1, 2, 10, 4).double())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_rows_of_their_own(causal, per_head):
    """Positions choose rows and columns of W_A and b; documents do not mix."""
    made = drawn(map_of(Alignment(6, per_head=per_head), causal=causal), seed=1)
    v = normal(2, 2, 5, 4, seed=2)
    at = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 0, 1]])
    documents = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
    valid = torch.tensor([[True] * 5, [True, True, False, True, True]])
    got = run(made, v, RowLayout(valid=valid, positions=at, documents=documents))
    for b in range(2):
        for t in range(5):
            if not valid[b, t]:
                continue
            for g in range(2):
                which = g if per_head else 0
                total = made.bias[which, at[b, t]].expand(4)
                for s in range(5):
                    near = documents[b, t] == documents[b, s] and valid[b, s]
                    if near and (not causal or at[b, s] <= at[b, t]):
                        total = total + made.weight[which, at[b, t], at[b, s]] * v[b, g, s]
                assert_close(got[b, g, t], total)


def test_gradient_above_the_diagonal_is_zero():
    made = drawn(map_of(Alignment(6), causal=True), seed=1)
    run(made, normal(2, 2, 6, 4, seed=2)).square().sum().backward()
    assert torch.equal(made.weight.grad, made.weight.grad.tril())
    assert (made.weight.grad.tril().abs().sum(-1) > 0).all()


def test_unused_rows_get_no_gradient():
    made = drawn(map_of(Alignment(6)), seed=1)
    run(made, normal(2, 2, 4, 4, seed=2)).square().sum().backward()
    assert (made.weight.grad[:, 4:] == 0).all()
    assert (made.weight.grad[:, :, 4:] == 0).all()
    assert (made.bias.grad[:, 4:] == 0).all()
    assert (made.weight.grad[:, :4, :4] != 0).all()


def test_printed_form():
    made = map_of(Alignment(9, per_head=True, bias=False), causal=True)
    assert repr(made) == "AlignmentMap([9, 9], maps=2, bias=False, causal=True)"


def test_no_mixing():
    still = NoMixing()
    assert (still.parameters(4), still.flops(9, 32), still.max_length) == (0, 0, None)
    module = still.build(num_kv_heads=4, causal=False, device=None, dtype=None)
    k, v = normal(1, 1, 3, 4, seed=1), normal(1, 1, 3, 4, seed=2)
    same_k, same_v = module(k, v, ALL_REAL)
    assert same_k is k
    assert same_v is v
    assert list(module.parameters()) == []
