"""Rope: feature pair (i, i + D/2) of a query or key at position p turns by p theta^(-2i/D)."""

from __future__ import annotations

import math

import pytest

from suffice import AttentionSpec
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.projections import Efficient, Optimised, Standard
from suffice.testing import assert_close, documents, normal, padded

from .loops import attention, built, everything, linear, tensor, up_to_self


def turned(rows, positions, num_heads, theta):
    width = len(rows[0]) // num_heads
    half = width // 2
    out = []
    for row, position in zip(rows, positions, strict=True):
        new = list(row)
        for h in range(num_heads):
            for i in range(half):
                a, b = row[h * width + i], row[h * width + i + half]
                angle = position * theta ** (-2 * i / width)
                new[h * width + i] = a * math.cos(angle) - b * math.sin(angle)
                new[h * width + i + half] = a * math.sin(angle) + b * math.cos(angle)
        out.append(new)
    return out


def definition(layer, x, *, num_heads, num_kv_heads=None, theta=10000.0, see=everything):
    groups = num_kv_heads or num_heads
    q = linear(x, layer.q_proj)
    width = len(q[0]) // num_heads
    k = linear(x, layer.k_proj) if hasattr(layer.k_proj, "weight") else x
    v = linear(x, layer.v_proj) if hasattr(layer.v_proj, "weight") else x
    k = [row[: groups * width] for row in k]
    positions = range(len(x))
    return attention(
        layer,
        turned(q, positions, num_heads, theta),
        turned(k, positions, groups, theta),
        v,
        num_heads=num_heads,
        num_kv_heads=groups,
        head_dim=width,
        see=see,
    )


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("causal", [False, True])
def test_standard(length, causal):
    pattern, see = (Causal(), up_to_self) if causal else (Full(), everything)
    layer = built(AttentionSpec(d_model=8, num_heads=2, pattern=pattern, position=Rope()))
    x = normal(2, length, 8, seed=length)
    rows = [definition(layer, r, num_heads=2, see=see) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize(
    "projections",
    [Standard(), Optimised(), Efficient()],
    ids=["standard", "optimised", "efficient"],
)
def test_keys_turn_and_values_do_not(projections):
    """Where K = V = X this tells whether V was rotated along with K."""
    layer = built(
        AttentionSpec(d_model=8, num_heads=2, projections=projections, position=Rope(100.0))
    )
    x = normal(2, 7, 8, seed=1)
    rows = [definition(layer, r, num_heads=2, theta=100.0) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


def test_shared_heads():
    layer = built(AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, position=Rope()))
    x = normal(2, 7, 8, seed=1)
    rows = [definition(layer, r, num_heads=4, num_kv_heads=2) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("causal", [False, True])
def test_positions_count_real_tokens(side, causal):
    pattern, see = (Causal(), up_to_self) if causal else (Full(), everything)
    layer = built(AttentionSpec(d_model=8, num_heads=2, pattern=pattern, position=Rope()))
    x, valid = normal(4, 6, 8, seed=2), padded(4, 6, side)
    got = layer(x, valid=valid)
    for row, keep, out in zip(x, valid, got, strict=True):
        want = definition(layer, row[keep].tolist(), num_heads=2, see=see)
        assert_close(out[keep], tensor(want))


def test_positions_restart_in_each_document():
    layer = built(AttentionSpec(d_model=8, num_heads=2, position=Rope()))
    x, segments = normal(3, 8, 8, seed=2), documents(3, 8, seed=1)
    got = layer(x, segments=segments)
    for row, numbers, out in zip(x, segments, got, strict=True):
        for number in numbers.unique():
            here = numbers == number
            want = definition(layer, row[here].tolist(), num_heads=2)
            assert_close(out[here], tensor(want))
