"""Definition 4: V' = W_A V + b (one number of b per position), then as definition 3.

In a causal layer W_A is lower triangular. A shorter sequence uses the top-left block. W_A is
shared by the heads, unless there is one for each key/value head.
"""

from __future__ import annotations

import math

import pytest

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised, Standard
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal

from .loops import attention, built, everything, linear, tensor, up_to_self


def aligned(v, layer, num_kv_heads, causal):
    """V'_t = sum over s of W_A[t][s] V_s + b_t, in each column slice with its own map."""
    weight = layer.mixing.weight.tolist()
    bias = None if layer.mixing.bias is None else layer.mixing.bias.tolist()
    width = len(v[0]) // num_kv_heads
    out = []
    for t in range(len(v)):
        row = []
        for column in range(len(v[0])):
            which = column // width if len(weight) > 1 else 0
            past = range(t + 1) if causal else range(len(v))
            mixed = math.fsum(weight[which][t][s] * v[s][column] for s in past)
            row.append(mixed + (bias[which][t] if bias else 0.0))
        out.append(row)
    return out


def definition(layer, x, memory, *, num_heads, num_kv_heads=None, causal=False):
    groups = num_kv_heads or num_heads
    q = linear(x, layer.q_proj)
    k = linear(memory, layer.k_proj) if hasattr(layer.k_proj, "weight") else memory
    v = linear(memory, layer.v_proj) if hasattr(layer.v_proj, "weight") else memory
    width = len(q[0]) // num_heads
    v = [row[: groups * width] for row in v]
    return attention(
        layer,
        q,
        k,
        aligned(v, layer, groups, causal),
        num_heads=num_heads,
        num_kv_heads=groups,
        head_dim=width,
        see=up_to_self if causal else everything,
    )


def super_spec(length, *, num_heads=2, per_head=False, bias=True, init="glorot", **rest):
    mixing = Alignment(length, per_head=per_head, bias=bias, init=init)
    rest = {"encoder": Efficient(), **rest}
    return AttentionSpec(d_model=6, num_heads=num_heads, mixing=mixing, **rest)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_super_attention(length, num_heads):
    layer = built(super_spec(length, num_heads=num_heads))
    x = normal(2, length, 6, seed=length)
    rows = [definition(layer, r, r, num_heads=num_heads) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("num_heads", [1, 2])
def test_causal_super_attention_uses_the_lower_triangle_only(length, num_heads):
    layer = built(super_spec(9, num_heads=num_heads, pattern=Causal()))
    x = normal(2, length, 6, seed=length)
    rows = [definition(layer, r, r, num_heads=num_heads, causal=True) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_shorter_input_uses_the_top_left_block(length):
    layer = built(super_spec(9))
    x = normal(2, length, 6, seed=length)
    assert_close(layer(x), tensor([definition(layer, r, r, num_heads=2) for r in x.tolist()]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_one_map_per_head(causal, bias):
    spec = super_spec(7, per_head=True, bias=bias, pattern=Causal() if causal else Full())
    layer = built(spec)
    assert layer.mixing.weight.shape == (2, 7, 7)
    x = normal(2, 6, 6, seed=3)
    rows = [definition(layer, r, r, num_heads=2, causal=causal) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


def test_without_bias_of_the_map():
    layer = built(super_spec(7, bias=False))
    assert layer.mixing.bias is None
    x = normal(2, 7, 6, seed=3)
    assert_close(layer(x), tensor([definition(layer, r, r, num_heads=2) for r in x.tolist()]))


@pytest.mark.parametrize("encoder", [Standard(), Optimised()], ids=["standard", "optimised"])
@pytest.mark.parametrize("causal", [False, True])
def test_alignment_on_other_projections(encoder, causal):
    pattern = Causal() if causal else Full()
    layer = built(super_spec(8, encoder=encoder, pattern=pattern))
    x = normal(2, 7, 6, seed=4)
    rows = [definition(layer, r, r, num_heads=2, causal=causal) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("per_head", [False, True])
def test_alignment_of_shared_heads(per_head):
    spec = AttentionSpec(
        d_model=8, num_heads=4, num_kv_heads=2, mixing=Alignment(7, per_head=per_head)
    )
    layer = built(spec)
    assert len(layer.mixing.weight) == (2 if per_head else 1)
    x = normal(2, 6, 8, seed=4)
    rows = [definition(layer, r, r, num_heads=4, num_kv_heads=2) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4), (3, 1)])
def test_cross_attention_aligns_the_memory(length, source_length):
    layer = built(super_spec(9))
    x, memory = normal(2, length, 6, seed=1), normal(2, source_length, 6, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    rows = [definition(layer, r, m, num_heads=2) for r, m in pairs]
    assert_close(layer(x, memory), tensor(rows))
