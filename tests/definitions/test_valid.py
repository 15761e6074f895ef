"""Padding: a padded row equals the row of its real tokens alone, wherever the padding stands."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, attend, preset
from suffice.encoders import Efficient
from suffice.mixing import Alignment
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, documents, normal, padded

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


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("length", [2, 5, 9])
def test_padded_row_equals_its_real_tokens(name, side, length):
    layer = built(SPECS[name])
    x, valid = normal(4, length, 6, seed=length), padded(4, length, side)
    got = layer(x, valid=valid)
    for row, keep, out in zip(x, valid, got, strict=True):
        assert_close(out[keep], layer(row[keep][None])[0])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_what_padding_holds_is_never_read(name, side):
    layer = built(SPECS[name])
    x, valid = normal(4, 6, 6, seed=1), padded(4, 6, side)
    want = layer(x, valid=valid)[valid]
    for poison in (float("nan"), float("inf"), -1e300):
        got = layer(torch.where(valid[..., None], x, poison), valid=valid)[valid]
        assert_close(got, want, "exact")


@pytest.mark.parametrize("name", ["standard", "optimised", "efficient", "super"])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padded_memory(name, side):
    layer = built(SPECS[name])
    x, memory, valid = normal(4, 3, 6, seed=1), normal(4, 6, 6, seed=2), padded(4, 6, side)
    got = layer(x, memory, valid=valid)
    for row, source, keep, out in zip(x, memory, valid, got, strict=True):
        assert_close(out, layer(row[None], source[keep][None])[0])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_in_packed_documents(name, side):
    layer = built(SPECS[name])
    x, valid, segments = normal(4, 8, 6, seed=1), padded(4, 8, side), documents(4, 8, seed=2)
    got = layer(x, valid=valid, segments=segments)
    for row, keep, numbers, out in zip(x, valid, segments, got, strict=True):
        for number in numbers[keep].unique():
            here = keep & (numbers == number)
            assert_close(out[here], layer(row[here][None])[0])


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
