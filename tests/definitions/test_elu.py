"""Elu: phi(x) = elu(x) + 1; the weight of a key is phi(q) . phi(k), without a scale."""

from __future__ import annotations

import math

import pytest

from suffice import AttentionSpec
from suffice.kernels import Elu
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal

from .loops import (
    attention,
    built,
    dot,
    everything,
    gradients_agree,
    linear,
    outputs,
    tensor,
    up_to_self,
)


def phi(x):
    """elu(a) + 1 is a + 1 above 0 and exp(a) below."""
    return [a + 1 if a > 0 else math.exp(a) for a in x]


def weigh(query, key):
    return dot(phi(query), phi(key))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, is_causal):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern, kernel=Elu())
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see, weigh=weigh))


@pytest.mark.parametrize("length", [63, 64, 65, 130])
def test_layer_over_several_chunks(length):
    spec = AttentionSpec(d_model=4, num_heads=2, pattern=Causal(), kernel=Elu())
    layer, x = built(spec), normal(1, length, 4, seed=length)
    assert_close(layer(x), outputs(layer, x, up_to_self, weigh=weigh))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4), (3, 1)])
def test_cross_attention(length, source_length):
    layer = built(AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, kernel=Elu()))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    rows = []
    for r, m in zip(x.tolist(), memory.tolist(), strict=True):
        q, k, v = linear(r, layer.q_proj), linear(m, layer.k_proj), linear(m, layer.v_proj)
        rows.append(attention(layer, q, k, v, num_heads=4, num_kv_heads=2, head_dim=2, weigh=weigh))
    assert_close(layer(x, memory), tensor(rows))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradient(is_causal):
    pattern = Causal() if is_causal else Full()
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=pattern, kernel=Elu()))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
