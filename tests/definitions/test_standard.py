"""Definition 1: Q = X W_Q + b_Q, K = X W_K + b_K, V = X W_V + b_V; H_i = softmax(Q_i K_i^T /
sqrt(d_k)) V_i over column slices; O = [H_1 .. H_h] W_O + b_O.
"""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.testing import assert_close, normal

from .loops import attention, built, linear, tensor


def definition(layer, x, memory, *, num_heads, head_dim, scale=None):
    q = linear(x, layer.q_proj)
    k = linear(memory, layer.k_proj)
    v = linear(memory, layer.v_proj)
    return attention(layer, q, k, v, num_heads=num_heads, head_dim=head_dim, scale=scale)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_self_attention(length, num_heads):
    layer = built(AttentionSpec(d_model=6, num_heads=num_heads))
    x = normal(2, length, 6, seed=length)
    rows = [
        definition(layer, r, r, num_heads=num_heads, head_dim=6 // num_heads) for r in x.tolist()
    ]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("length", [1, 4, 9])
def test_without_biases(length):
    layer = built(AttentionSpec(d_model=6, num_heads=2, bias=False))
    x = normal(2, length, 6, seed=length)
    rows = [definition(layer, r, r, num_heads=2, head_dim=3) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))
    assert all(p.dim() == 2 for p in layer.parameters())


@pytest.mark.parametrize("head_dim", [1, 2, 5, 7])
def test_head_width_of_its_own(head_dim):
    layer = built(AttentionSpec(d_model=6, num_heads=3, head_dim=head_dim))
    x = normal(2, 5, 6, seed=head_dim)
    rows = [definition(layer, r, r, num_heads=3, head_dim=head_dim) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("scale", [0.1, 1.0, -2.0])
def test_scale_replaces_one_over_root_of_head_dim(scale):
    layer = built(AttentionSpec(d_model=6, num_heads=2, scale=scale))
    x = normal(2, 5, 6, seed=3)
    rows = [definition(layer, r, r, num_heads=2, head_dim=3, scale=scale) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (7, 4), (9, 1), (5, 5)])
def test_cross_attention(length, source_length):
    layer = built(AttentionSpec(d_model=6, num_heads=2, d_source=5))
    x, memory = normal(2, length, 6, seed=1), normal(2, source_length, 5, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    rows = [definition(layer, r, m, num_heads=2, head_dim=3) for r, m in pairs]
    assert_close(layer(x, memory), tensor(rows))
