"""Global(tokens): the first tokens see everything and are seen by everything."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.patterns import Causal, Global, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, gradients_agree, outputs, visible

SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23)]


def hub(tokens):
    return lambda t, s: t < tokens or s < tokens


def cases(tokens, is_causal):
    pattern, see = Global(tokens), hub(tokens)
    return (pattern & Causal(), causal(see)) if is_causal else (pattern, see)


@pytest.mark.parametrize("tokens", [1, 2, 5, 30])
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(tokens, is_causal):
    pattern, see = cases(tokens, is_causal)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))
        assert pattern.causal is is_causal


def test_causal_with_more_queries_than_keys():
    table = visible(causal(hub(1)), 5, 2)
    assert (Global(1) & Causal()).mask(5, 2).tolist() == table


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("tokens", [1, 3, 30])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, tokens, is_causal):
    pattern, see = cases(tokens, is_causal)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


@pytest.mark.parametrize("length", [1, 2, 5, 11])
@pytest.mark.parametrize("is_causal", [False, True])
def test_beside_a_window(length, is_causal):
    pattern, see = Global(2) | Window(2), lambda t, s: hub(2)(t, s) or abs(t - s) < 2
    if is_causal:
        pattern, see = pattern & Causal(), causal(see)
    layer = built(AttentionSpec(d_model=8, num_heads=2, pattern=pattern))
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Global(1)))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
