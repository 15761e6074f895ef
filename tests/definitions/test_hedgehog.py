"""Hedgehog: phi(x) = [exp(W x), exp(-W x)], W of each query head and of each key head."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.kernels import Hedgehog
from suffice.ops import OPS, MaskInputs
from suffice.patterns import Causal, Full
from suffice.positions import NoPosition, Rope
from suffice.testing import assert_close, normal
from tests.ops.native.sums import inputs, posed

from .loops import (
    built,
    columns,
    dot,
    everything,
    gradients_agree,
    joined,
    linear,
    tensor,
    up_to_self,
    weighted_head,
)

HEADS, GROUPS = 4, 2


def phi(weight, x):
    """Return the exponentials of W x, and their inverses."""
    products = [dot(row, x) for row in weight]
    return [math.exp(p) for p in products] + [math.exp(-p) for p in products]


def outputs(layer, x, see, width):
    state = {name: value.tolist() for name, value in layer.state_dict().items()}
    query_maps, key_maps = state["features.q_weight"], state["features.k_weight"]
    batch = []
    for row in x.tolist():
        q, k, v = (linear(row, part) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
        heads = []
        for h in range(HEADS):
            g = h * GROUPS // HEADS

            def weigh(query, key, h=h, g=g):
                return dot(phi(query_maps[h], query), phi(key_maps[g], key))

            parts = [columns(part, i, width) for part, i in ((q, h), (k, g), (v, g))]
            heads.append(weighted_head(*parts, see, weigh))
        batch.append(linear(joined(heads), layer.o_proj))
    return tensor(batch)


@pytest.mark.parametrize("length", [1, 2, 5, 9, 65, 130])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, is_causal):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(
        d_model=8, num_heads=HEADS, num_kv_heads=GROUPS, pattern=pattern, kernel=Hedgehog()
    )
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see, 2), n=length)


@pytest.mark.parametrize("scale", [None, 0.09])
def test_maps_start_as_the_root_of_the_scale(scale):
    spec = AttentionSpec(d_model=32, num_heads=HEADS, kernel=Hedgehog(), scale=scale)
    maps = Attention(spec, dtype=torch.float64).features
    want = torch.eye(8, dtype=torch.float64) * math.sqrt(scale or 8**-0.5)
    for weight in (maps.q_weight, maps.k_weight):
        assert_close(weight, want.expand(HEADS, 8, 8))


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=repr)
@pytest.mark.parametrize("length", [5, 70])
def test_gradient(pattern, length):
    layer = built(
        AttentionSpec(
            d_model=8, num_heads=HEADS, num_kv_heads=GROUPS, pattern=pattern, kernel=Hedgehog()
        )
    )
    assert gradients_agree(layer, normal(2, length, 8, seed=1))


def test_maps_act_after_positions_have_rotated():
    spec = AttentionSpec(
        d_model=16, num_heads=HEADS, pattern=Causal(), kernel=Hedgehog(), position=Rope()
    )
    layer = built(spec)
    x = normal(1, 12, 16, seed=4)
    still = built(replace(spec, position=NoPosition()))
    assert_close(layer(x)[:, :1], still(x)[:, :1])  # one key, whatever its angle
    assert (layer(x) - still(x))[:, 1:].abs().max() > 1e-3


def test_large_products_neither_overflow_nor_vanish():
    """The largest key outgrows exp's range; float32 gives what float64 would."""
    q, k, v = (x.float() for x in inputs(70, 70, size=30.0))
    for pattern in (Full(), Causal()):
        call, parts = posed(q, k, v, Hedgehog(), pattern)
        ops = OPS["scan"], OPS["reference"]
        outs = [op.run(q, k, v, MaskInputs(), call, parts) for op in ops]
        assert all(out.isfinite().all() for out in outs)
        for one, other in pairwise(outs):
            assert_close(one, other, n=70 * 30)
