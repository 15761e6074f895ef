"""Padding: a padded row equals the row of its real tokens alone, wherever the padding stands."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, attend, preset
from suffice.encoders import Efficient
from suffice.mixing import Alignment
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, normal, padded

from .loops import built, head, tensor

SPECS = {
    "standard": preset("standard", 6, 2),
    "causal": preset("standard", 6, 2, causal=True),
    "optimised": preset("optimised", 6, 2),
    "efficient": preset("efficient", 6, 3),
    "super": preset("super_attention", 6, 2, length=9),
    "causal-super": preset("super_attention", 6, 2, length=9, causal=True),
    "super-per-head": AttentionSpec(
        d_model=6, num_heads=2, encoder=Efficient(), mixing=Alignment(9, per_head=True)
    ),
    "mqa": preset("mqa", 6, 3, causal=True),
}


@pytest.mark.parametrize("name", ["standard", "optimised", "efficient", "super"])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padded_memory(name, side):
    layer = built(SPECS[name])
    x, memory, valid = normal(4, 3, 6, seed=1), normal(4, 6, 6, seed=2), padded(4, 6, side)
    got = layer(x, memory, valid=valid)
    for row, source, keep, out in zip(x, memory, valid, got, strict=True):
        assert_close(out, layer(row[None], source[keep][None])[0])


@pytest.mark.parametrize("causal", [False, True])
def test_attend_reads_valid_keys_only(causal):
    q, k, v = (normal(2, 1, n, 3, seed=n) for n in (5, 7, 7))
    valid = bits(2, 7, seed=3)
    want = []
    for b in range(2):

        def see(t, s, b=b):
            return bool(valid[b, s]) and (not causal or s <= t + 2)

        want.append([head(q[b, 0].tolist(), k[b, 0].tolist(), v[b, 0].tolist(), see, 3**-0.5)])
    pattern = {"pattern": Causal()} if causal else {}
    assert_close(attend(q, k, v, valid=valid, **pattern), tensor(want))
