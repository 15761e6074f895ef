"""T10: polarity, type, shape and layout of masks, and which key/value head a head reads."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, AttentionSpec, attend
from suffice.errors import MaskError, ShapeError
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, bits, drawn, normal

from .mechanisms import D_MODEL, LENGTH, MASKED, SPECS, accepting, layer_of
from .oracle import oracle

Q, K, V = normal(4, 6, 4, 8, seed=1), normal(4, 2, 9, 8, seed=2), normal(4, 2, 9, 8, seed=3)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16], ids=str
)
@pytest.mark.parametrize("which", ["mask", "valid"])
def test_numbers_are_no_mask(dtype, which):
    numbers = torch.ones((4, 9) if which == "valid" else (4, 1, 4, 9), dtype=dtype)
    with pytest.raises(MaskError, match="additive") as refusal:
        attend(Q, K, V, **{which: numbers})
    assert isinstance(refusal.value, TypeError)
    layer, x = layer_of("standard"), normal(4, 9, D_MODEL, seed=1)
    numbers = torch.ones((4, 9) if which == "valid" else (4, 1, 9, 9), dtype=dtype)
    with pytest.raises(MaskError, match="additive"):
        layer(x, **{which: numbers})


@pytest.mark.parametrize(
    "shape", [(4, 9), (9, 1), (4, 1, 9, 1), (4, 1, 4, 8), (4, 1, 1, 9), (4, 2, 4, 9), (2, 1, 4, 9)]
)
def test_a_mask_of_another_shape_is_refused(shape):
    """(4, 9) is both [B, S] and [T, S] here: only four axes say which."""
    with pytest.raises(ShapeError, match=r"\[4, 6, 4, 9\]") as refusal:
        attend(Q, K, V, mask=torch.ones(shape, dtype=torch.bool))
    assert isinstance(refusal.value, ValueError)
    assert "valid=" in str(refusal.value)


@pytest.mark.parametrize("shape", [(4, 6, 4, 9), (4, 1, 4, 9), (1, 6, 4, 9), (1, 1, 4, 9)])
@pytest.mark.parametrize("impl", accepting(4, 9, heads=(6, 2), data={"mask"}))
def test_each_legal_shape(shape, impl):
    mask = bits(*shape, seed=1)
    assert_close(attend(Q, K, V, mask=mask, impl=impl), oracle(Q, K, V, mask))


@pytest.mark.parametrize("name", MASKED)
def test_masks_of_a_layer(name):
    x, mask = normal(4, LENGTH, D_MODEL, seed=1), bits(4, 1, LENGTH, LENGTH, seed=2)
    layer = layer_of(name)
    allowed = SPECS[name].pattern.mask(LENGTH, LENGTH) & mask
    shown = layer.weights(x, mask=mask)
    assert torch.equal(shown > 0, allowed.expand_as(shown))
    assert_close(layer(x, mask=mask), layer_of(name, impl="reference")(x, mask=mask))


@torch.no_grad()
def test_a_mask_on_a_long_window_keeps_it_from_ops_that_skip_blocks():
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=Window(16) & Causal())
    x, mask = normal(1, 1100, 8, seed=1), bits(1, 1, 1100, 1100, seed=2)
    layers = [drawn(Attention(spec, impl=impl), seed=1).double() for impl in ("auto", "reference")]
    got, want = (layer(x, mask=mask) for layer in layers)
    assert_close(got, want)
    assert_close(layers[0](x), layers[1](x))
