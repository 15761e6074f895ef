"""Dilated(size, dilation): key distances 0, dilation, ..., (size - 1) * dilation on either side."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.patterns import Causal, Dilated, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, gradients_agree, outputs, visible

CASES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 4), (4, 3), (3, 30)]
SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23), (5, 2)]


def apart(size, dilation):
    distances = {step * dilation for step in range(size)}
    return lambda t, s: abs(t - s) in distances


@pytest.mark.parametrize(("size", "dilation"), CASES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(size, dilation, is_causal):
    pattern, see = Dilated(size, dilation), apart(size, dilation)
    if is_causal:
        pattern, see = pattern & Causal(), causal(see)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))
        assert pattern.causal is is_causal


@pytest.mark.parametrize("size", [1, 2, 5])
def test_without_gaps_it_is_a_window(size):
    assert Dilated(size, 1).mask(11, 11).equal(Window(size).mask(11, 11))


@pytest.mark.parametrize(("size", "dilation"), CASES)
def test_visible_distances_are_multiples_of_the_spacing(size, dilation):
    assert Dilated(size, dilation).spacing == dilation


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize(("size", "dilation"), [(2, 2), (3, 3), (2, 7)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, size, dilation, is_causal):
    pattern, see = Dilated(size, dilation), apart(size, dilation)
    if is_causal:
        pattern, see = pattern & Causal(), causal(see)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Dilated(2, 2)))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
