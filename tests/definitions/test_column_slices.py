"""Definitions 2 and 3: as definition 1, but V_i, or K_i and V_i, are the i-th column slice of X."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised
from suffice.testing import assert_close, normal

from .loops import attention, built, linear, tensor

both = pytest.mark.parametrize(
    "encoder", [Optimised(), Efficient()], ids=["optimised", "efficient"]
)


def definition(layer, x, memory, num_heads):
    q = linear(x, layer.q_proj)
    k = linear(memory, layer.k_proj) if type(layer.spec.encoder) is Optimised else memory
    width = len(memory[0]) // num_heads
    return attention(layer, q, k, memory, num_heads=num_heads, head_dim=width)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize(("num_heads", "bias"), [(1, True), (2, True), (3, False)])
@both
def test_self_attention(encoder, length, num_heads, bias):
    layer = built(AttentionSpec(d_model=6, num_heads=num_heads, encoder=encoder, bias=bias))
    x = normal(2, length, 6, seed=length)
    assert_close(layer(x), tensor([definition(layer, r, r, num_heads) for r in x.tolist()]))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (7, 4), (9, 1)])
@both
def test_cross_attention(encoder, length, source_length):
    layer = built(AttentionSpec(d_model=6, num_heads=2, encoder=encoder))
    x, memory = normal(2, length, 6, seed=1), normal(2, source_length, 6, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    assert_close(layer(x, memory), tensor([definition(layer, r, m, 2) for r, m in pairs]))


@both
def test_slices_have_no_parameters(encoder):
    layer = built(AttentionSpec(d_model=6, num_heads=2, encoder=encoder))
    names = {name.split(".")[0] for name, _ in layer.named_parameters()}
    assert names == {"q_proj", "o_proj"} | ({"k_proj"} if encoder == Optimised() else set())
