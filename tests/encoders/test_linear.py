"""Which maps are learned, how they start, and the columns of those that are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import Attention, preset
from suffice.encoders import Columns, Efficient, Encoder, Latent, Optimised, Standard, Widths
from suffice.testing import normal

WIDTHS = Widths(d_model=12, d_source=10, q=8, kv=4)
LEARNED = {
    Standard(): {"q_proj", "k_proj", "v_proj", "o_proj"},
    Optimised(): {"q_proj", "k_proj", "o_proj"},
    Efficient(): {"q_proj", "o_proj"},
    Latent(): {"q_proj", "k_proj", "o_proj"},
}
SHAPES = {"q_proj": (12, 8), "k_proj": (10, 4), "v_proj": (10, 4), "o_proj": (8, 12)}


@pytest.mark.parametrize("encoder", LEARNED, ids=repr)
@pytest.mark.parametrize("bias", [True, False])
def test_maps(encoder: Encoder, bias):
    assert encoder.shapes(WIDTHS) == {n: SHAPES[n] for n in SHAPES if n in LEARNED[encoder]}
    maps = encoder.build(WIDTHS, bias=bias, linear=nn.Linear, device=None, dtype=None)
    assert set(maps) == set(SHAPES)
    for name, made in maps.items():
        if name in LEARNED[encoder]:
            assert (made.in_features, made.out_features) == SHAPES[name]
            assert (made.bias is not None) is bias
        elif encoder != Latent():
            assert isinstance(made, Columns)
            assert made.width == 4
    built = sum(p.numel() for made in maps.values() for p in made.parameters())
    assert encoder.parameters(WIDTHS, bias) == built


def test_columns_are_a_view():
    x = normal(2, 3, 5, seed=1)
    got = Columns(3)(x)
    assert torch.equal(got, x[..., :3])
    assert got.data_ptr() == x.data_ptr()
    assert repr(Columns(3)) == "Columns(width=3)"


@pytest.mark.parametrize("name", ["standard", "optimised", "efficient"])
def test_start_is_glorot_uniform_with_zero_biases(name):
    layer = Attention(preset(name, 256, 4))
    for part in layer.children():
        if isinstance(part, nn.Linear):
            bound = (6 / (256 + 256)) ** 0.5
            assert 0.99 * bound < part.weight.abs().max() <= bound
            assert abs(part.weight.var() / (bound**2 / 3) - 1) < 0.05
            assert (part.bias == 0).all()
