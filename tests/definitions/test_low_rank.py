"""LowRank: softmax(Q (E K)^T / sqrt(d)) F V with E and F of [rank, length]; shared, F is E.

A shorter sequence uses the first columns.
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Efficient
from suffice.mixing import LowRank
from suffice.testing import assert_close, normal, padded

from .loops import attention, built, gradients_agree, linear, tensor


def summed(x, maps, groups):
    """x'_r = sum over s of E[r][s] x_s, in each head by its own map or all by one."""
    width, out = len(x[0]) // groups, []
    for r in range(len(maps[0])):
        row = []
        for column in range(len(x[0])):
            sums = maps[column // width if len(maps) > 1 else 0][r]
            row.append(math.fsum(sums[s] * x[s][column] for s in range(len(x))))
        out.append(row)
    return out


def definition(layer, x, memory):
    spec, mixing = layer.spec, layer.mixing
    q = linear(x, layer.q_proj)
    width = len(q[0]) // spec.num_heads
    k = linear(memory, layer.k_proj) if hasattr(layer.k_proj, "weight") else memory
    v = linear(memory, layer.v_proj) if hasattr(layer.v_proj, "weight") else memory
    of_keys = mixing.keys.tolist()
    of_values = of_keys if spec.mixing.shared else mixing.values.tolist()
    return attention(
        layer,
        q,
        summed(k, of_keys, spec.kv_heads),
        summed(v, of_values, spec.kv_heads),
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=width,
    )


def outputs(layer, x, memory=None):
    memory = x if memory is None else memory
    return tensor(
        [definition(layer, r, m) for r, m in zip(x.tolist(), memory.tolist(), strict=True)]
    )


def spec_of(rank, *, length=9, shared=True, per_head=False, heads=(2, 2), **rest):
    mixing = LowRank(length, rank, shared=shared, per_head=per_head)
    return AttentionSpec(
        d_model=8, num_heads=heads[0], num_kv_heads=heads[1], mixing=mixing, **rest
    )


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("rank", [1, 2, 5, 9])
@pytest.mark.parametrize("shared", [False, True])
def test_layer(length, rank, shared):
    layer = built(spec_of(rank, shared=shared))
    assert layer.mixing.keys.shape == (1, rank, 9)
    assert (layer.mixing.values is None) is shared
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_heads(heads, shared, per_head):
    layer = built(spec_of(3, heads=heads, shared=shared, per_head=per_head))
    assert len(layer.mixing.keys) == (heads[1] if per_head else 1)
    x = normal(2, 8, 8, seed=3)
    assert_close(layer(x), outputs(layer, x))


@pytest.mark.parametrize("shared", [False, True])
def test_keys_and_values_that_are_columns_of_x(shared):
    layer = built(spec_of(3, shared=shared, encoder=Efficient()))
    x = normal(2, 8, 8, seed=3)
    assert_close(layer(x), outputs(layer, x))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (19, 4), (3, 1)])
def test_cross_attention_shortens_the_memory(length, source_length):
    layer = built(spec_of(3, shared=False))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    assert_close(layer(x, memory), outputs(layer, x, memory))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_columns_count_real_tokens(side):
    layer = built(spec_of(3, shared=False))
    x, valid = normal(4, 9, 8, seed=2), padded(4, 9, side)
    got = layer(x.masked_fill(~valid[..., None], torch.nan), valid=valid)
    for row, keep, out in zip(x, valid, got, strict=True):
        assert_close(out[keep], outputs(layer, row[keep][None])[0])


@pytest.mark.parametrize("shared", [False, True])
def test_gradient(shared):
    layer = built(spec_of(2, length=6, shared=shared))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))
