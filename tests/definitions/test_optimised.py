"""Definition 2: as definition 1, but V_i is the i-th column slice of X itself: no W_V."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.encoders import Optimised
from suffice.testing import assert_close, normal

from .loops import attention, built, linear, tensor


def definition(layer, x, memory, num_heads):
    q, k = linear(x, layer.q_proj), linear(memory, layer.k_proj)
    width = len(memory[0]) // num_heads
    return attention(layer, q, k, memory, num_heads=num_heads, head_dim=width)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize(("num_heads", "bias"), [(1, True), (2, True), (3, False)])
def test_self_attention(length, num_heads, bias):
    spec = AttentionSpec(d_model=6, num_heads=num_heads, encoder=Optimised(), bias=bias)
    layer = built(spec)
    x = normal(2, length, 6, seed=length)
    assert_close(layer(x), tensor([definition(layer, r, r, num_heads) for r in x.tolist()]))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (7, 4), (9, 1)])
def test_cross_attention(length, source_length):
    layer = built(AttentionSpec(d_model=6, num_heads=2, encoder=Optimised()))
    x, memory = normal(2, length, 6, seed=1), normal(2, source_length, 6, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    assert_close(layer(x, memory), tensor([definition(layer, r, m, 2) for r, m in pairs]))


def test_values_have_no_parameters():
    layer = built(AttentionSpec(d_model=6, num_heads=2, encoder=Optimised()))
    names = {name.split(".")[0] for name, _ in layer.named_parameters()}
    assert names == {"q_proj", "k_proj", "o_proj"}
