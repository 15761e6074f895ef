"""Fixed(stride, tail): every query sees the keys s with s mod stride >= stride - tail."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.patterns import Causal, Fixed
from suffice.testing import assert_close, normal

from .loops import built, causal, everything, gradients_agree, outputs, visible

CASES = [(1, 1), (2, 1), (4, 1), (4, 2), (5, 3), (5, 5), (40, 1)]
SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23), (5, 2)]


def at_the_end_of_a_stretch(stride, tail):
    """A^(2) of the fixed pattern: j mod l in {l - c, ..., l - 1}."""
    return lambda t, s: s % stride in range(stride - tail, stride)


def cases(stride, tail, is_causal):
    pattern, see = Fixed(stride, tail), at_the_end_of_a_stretch(stride, tail)
    return (pattern & Causal(), causal(see)) if is_causal else (pattern, see)


@pytest.mark.parametrize(("stride", "tail"), CASES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(stride, tail, is_causal):
    pattern, see = cases(stride, tail, is_causal)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))
        assert pattern.causal is is_causal


def test_a_tail_of_one_unless_given():
    assert Fixed(3) == Fixed(3, 1)
    assert Fixed(3, tail=3).mask(4, 7).tolist() == visible(everything, 4, 7)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize(("stride", "tail"), [(2, 1), (4, 2), (30, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, stride, tail, is_causal):
    """A query before the first tail sees nothing: 0 from the heads, so the output is b_O."""
    pattern, see = cases(stride, tail, is_causal)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Fixed(2) & Causal()))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
