"""Window(size): query t sees key s iff |t - s| < size; causal, exactly the last `size` keys."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, gradients_agree, outputs, visible

SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (8, 9), (17, 17), (5, 2)]


def near(size):
    return lambda t, s: -size < t - s < size


def patterns(size, is_causal):
    pattern, see = Window(size), near(size)
    return (pattern & Causal(), causal(see)) if is_causal else (pattern, see)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 20])
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(size, is_causal):
    pattern, see = patterns(size, is_causal)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))
        assert pattern.causal is is_causal


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_causal_window_holds_exactly_its_size(size):
    counts = (Window(size) & Causal()).mask(12, 12).sum(dim=1).tolist()
    assert counts == [min(size, t + 1) for t in range(12)]


@pytest.mark.parametrize("size", [1, 3])
def test_positions_far_away_and_out_of_order(size):
    q, k = torch.tensor([10**12, 7, 10**12 + 2]), torch.tensor([8, 10**12 + 1, 3, 5])
    want = [[near(size)(t, s) for s in k.tolist()] for t in q.tolist()]
    assert Window(size).allowed(q[:, None], k[None]).tolist() == want


@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, size, is_causal):
    pattern, see = patterns(size, is_causal)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradient(is_causal):
    pattern, _ = patterns(2, is_causal)
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=pattern))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
