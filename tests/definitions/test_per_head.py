"""PerHead(patterns): head h follows patterns[h]."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, attend
from suffice.patterns import Block, Causal, Full, Global, PerHead, Strided, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, everything, gradients_agree, head, outputs, tensor, visible

PARTS = (Window(2), Strided(3), Global(1), Full())
SEES = [
    lambda t, s: abs(t - s) < 2,
    lambda t, s: (t - s) % 3 == 0,
    lambda t, s: t == 0 or s == 0,
    everything,
]
SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (14, 14)]


@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(is_causal):
    pattern, sees = PerHead(PARTS), SEES
    if is_causal:
        pattern, sees = pattern & Causal(), [causal(see) for see in SEES]
    for queries, keys in SHAPES:
        want = [visible(see, queries, keys) for see in sees]
        assert pattern.mask(queries, keys).tolist() == want
        assert pattern.heads == 4
        assert pattern.causal is is_causal


def test_causal_where_each_head_is():
    assert PerHead((Causal(), Window(2) & Causal())).causal
    assert not PerHead((Causal(), Window(2))).causal


def test_beside_another_pattern():
    """`|` and `&` reach into every head."""
    either = (PerHead(PARTS[:2]) | Global(1)).mask(7, 7).tolist()
    assert either == [visible(lambda t, s, f=f: f(t, s) or SEES[2](t, s), 7, 7) for f in SEES[:2]]
    twice = (PerHead(PARTS[:2]) & PerHead((Causal(), Block(4)))).mask(7, 7).tolist()
    assert twice == [
        visible(causal(SEES[0]), 7, 7),
        visible(lambda t, s: SEES[1](t, s) and t // 4 == s // 4, 7, 7),
    ]


def test_heads_in_order():
    assert PerHead(PARTS).of_heads(4) == PARTS


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_layer(length, is_causal, kv_heads):
    pattern, sees = PerHead(PARTS), SEES
    if is_causal:
        pattern, sees = pattern & Causal(), [causal(see) for see in SEES]
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=kv_heads, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, list(sees)))


@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_attend(queries, keys):
    q, k, v = normal(1, 4, queries, 3, seed=1), *(normal(1, 2, keys, 3, seed=n) for n in (2, 3))
    got = attend(q, k, v, pattern=PerHead(PARTS))
    for h, see in enumerate(SEES):
        rows = [q[0, h].tolist(), k[0, h // 2].tolist(), v[0, h // 2].tolist()]
        past = keys - queries
        want = head(*rows, lambda t, s, see=see, past=past: see(past + t, s), 3**-0.5)
        assert_close(got[:, h], tensor([want]))


def test_saved_and_loaded():
    spec = AttentionSpec(d_model=8, num_heads=4, pattern=PerHead(PARTS) & Causal())
    again = AttentionSpec.from_json(spec.to_json())
    assert again == spec
    assert torch.equal(again.pattern.mask(6, 6), spec.pattern.mask(6, 6))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=PerHead((Window(2), Causal()))))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
