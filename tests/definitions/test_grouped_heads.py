"""GQA and MQA: query head h reads key/value head h // (H / G)."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, preset
from suffice.encoders import Efficient, Optimised, Standard
from suffice.patterns import Causal
from suffice.testing import assert_close, normal

from .loops import attention, built, everything, linear, tensor, up_to_self


def definition(layer, x, num_heads, num_kv_heads, causal=False):
    q = linear(x, layer.q_proj)
    width = len(q[0]) // num_heads
    k = linear(x, layer.k_proj) if hasattr(layer.k_proj, "weight") else x
    v = linear(x, layer.v_proj) if hasattr(layer.v_proj, "weight") else x
    return attention(
        layer,
        q,
        k,
        v,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=width,
        see=up_to_self if causal else everything,
    )


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 1), (4, 1), (4, 2), (6, 3), (6, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_standard(length, num_heads, num_kv_heads, causal):
    spec = AttentionSpec(
        d_model=12,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        **({"pattern": Causal()} if causal else {}),
    )
    layer = built(spec)
    assert layer.k_proj.weight.shape == (num_kv_heads * 12 // num_heads, 12)
    x = normal(2, length, 12, seed=length)
    rows = [definition(layer, r, num_heads, num_kv_heads, causal) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("encoder", [Optimised(), Efficient()], ids=["optimised", "efficient"])
def test_slices_of_x_are_the_first_columns(encoder):
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, encoder=encoder)
    layer = built(spec)
    x = normal(2, 6, 8, seed=3)
    assert_close(layer(x), tensor([definition(layer, r, 4, 2) for r in x.tolist()]))


@pytest.mark.parametrize(("name", "kv_heads"), [("mqa", 1), ("gqa", 2)])
def test_presets(name, kv_heads):
    spec = preset(name, 8, 4)
    assert (spec.num_kv_heads, spec.encoder) == (kv_heads, Standard())
    layer = built(spec)
    x = normal(2, 6, 8, seed=3)
    assert_close(layer(x), tensor([definition(layer, r, 4, kv_heads) for r in x.tolist()]))
