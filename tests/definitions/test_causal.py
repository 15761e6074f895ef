"""Causal: query i of T stands at position S - T + i and sees key j iff j is not after it."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, attend, preset
from suffice.patterns import Causal
from suffice.testing import assert_close, normal

from .loops import attention, built, head, linear, tensor, up_to_self


@pytest.mark.parametrize("queries", [1, 2, 5, 9])
@pytest.mark.parametrize("keys", [1, 2, 5, 9])
def test_queries_stand_last_among_the_keys(queries, keys):
    def see(t, s):
        return s <= keys - queries + t

    q, k, v = normal(queries, 3, seed=1), normal(keys, 3, seed=2), normal(keys, 2, seed=3)
    want = head(q.tolist(), k.tolist(), v.tolist(), see, 3**-0.5)
    got = attend(q[None, None], k[None, None], v[None, None], pattern=Causal())
    assert_close(got, tensor([[want]]))
    table = [[see(t, s) for s in range(keys)] for t in range(queries)]
    assert Causal().mask(queries, keys).tolist() == table
    assert Causal().pairs(queries, keys) == sum(map(sum, table))
    assert Causal().causal


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_layer(length):
    layer = built(AttentionSpec(d_model=6, num_heads=2, pattern=Causal()))
    x = normal(2, length, 6, seed=length)
    rows = []
    for row in x.tolist():
        q, k, v = (linear(row, m) for m in (layer.q_proj, layer.k_proj, layer.v_proj))
        rows.append(attention(layer, q, k, v, num_heads=2, head_dim=3, see=up_to_self))
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("mechanism", ["standard", "optimised", "efficient", "super_attention"])
def test_nothing_later_moves_an_output(mechanism):
    options = {"length": 9} if mechanism == "super_attention" else {}
    layer = built(preset(mechanism, 6, 2, causal=True, **options))
    x = normal(2, 9, 6, seed=1)
    whole = layer(x)
    for length in range(1, 9):
        assert_close(layer(x[:, :length]), whole[:, :length])
        other = x.clone()
        other[:, length:] = 1e3
        assert_close(layer(other)[:, :length], whole[:, :length])
