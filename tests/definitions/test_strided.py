"""Strided(stride): query t sees key s iff (t - s) mod stride = 0."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.patterns import Causal, Strided, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, everything, gradients_agree, outputs, visible

SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23)]


def on_stride(stride):
    return lambda t, s: (t - s) % stride == 0


def cases(stride, is_causal):
    pattern, see = Strided(stride), on_stride(stride)
    return (pattern & Causal(), causal(see)) if is_causal else (pattern, see)


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(stride, is_causal):
    pattern, see = cases(stride, is_causal)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))
        assert pattern.causal is is_causal


def test_more_queries_than_keys_see_back_only():
    table = visible(causal(on_stride(2)), 5, 2)
    assert (Strided(2) & Causal()).mask(5, 2).tolist() == table
    assert table[:3] == [[False, False]] * 3


def test_stride_one_sees_everything():
    assert Strided(1).mask(6, 9).tolist() == visible(everything, 6, 9)


def test_visible_distances_are_multiples_of_the_spacing():
    assert Strided(6).spacing == 6
    assert (Strided(6) & Causal()).spacing == 6
    assert (Strided(4) & Strided(6)).spacing == 12
    assert (Strided(6) | Window(2)).spacing == 1


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("stride", [1, 2, 4, 30])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, stride, is_causal):
    pattern, see = cases(stride, is_causal)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Strided(2) & Causal()))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
