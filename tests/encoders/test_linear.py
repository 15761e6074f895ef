"""Which maps are learned, how they start, and the columns of those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from suffice import Attention, AttentionSpec, preset
from suffice.encoders import Columns, Efficient, Encoder, Factory, Latent, Optimised, Standard
from suffice.layers import RMSNorm
from suffice.testing import normal

SPEC = AttentionSpec(d_model=12, d_source=10, num_heads=2, num_kv_heads=1, head_dim=4)
LEARNED = {
    Standard(): {"q_proj", "k_proj", "v_proj"},
    Optimised(): {"q_proj", "k_proj"},
    Efficient(): {"q_proj"},
    Latent(): {"q_proj", "k_proj"},
}
SHAPES = {"q_proj": (12, 8), "k_proj": (10, 4), "v_proj": (10, 4)}


@pytest.mark.parametrize("encoder", LEARNED, ids=repr)
@pytest.mark.parametrize("bias", [True, False])
def test_maps(encoder: Encoder, bias):
    spec = replace(SPEC, encoder=encoder, bias=bias)
    maps = {name: (m.inputs, m.outputs) for name, m in encoder.maps(spec).items()}
    assert maps == {n: SHAPES[n] for n in SHAPES if n in LEARNED[encoder]}
    modules = encoder.build(spec, Factory(linear=nn.Linear, rms=RMSNorm))
    assert set(modules) == {*SHAPES, "q_norm", "k_norm", "v_norm"}
    for name in SHAPES:
        module = modules[name]
        if name in LEARNED[encoder]:
            assert (module.in_features, module.out_features) == SHAPES[name]
            assert (module.bias is not None) is bias
        elif encoder != Latent():
            assert isinstance(module, Columns)
            assert module.width == 4
    built = sum(p.numel() for module in modules.values() for p in module.parameters())
    assert encoder.parameters(spec) == built


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
