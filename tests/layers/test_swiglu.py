from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.layers import MLP, SwiGLU
from suffice.testing import assert_close, drawn, normal


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu(bias):
    layer = drawn(SwiGLU(4, 6, bias=bias).double(), seed=1)
    x = normal(2, 3, 4, seed=2)
    gate, up = x @ layer.gate.weight.T, x @ layer.up.weight.T
    if bias:
        gate, up = gate + layer.gate.bias, up + layer.up.bias
    want = (gate / (1.0 + torch.exp(-gate)) * up) @ layer.down.weight.T
    assert_close(layer(x), want + layer.down.bias if bias else want)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 4 * 6 + bias * (6 + 6 + 4)


def test_swiglu_starts_as_the_mlp():
    layer = SwiGLU(40, 60)
    for linear in (layer.gate, layer.up, layer.down):
        assert 0.9 * (6 / 100) ** 0.5 < linear.weight.abs().max().item() <= (6 / 100) ** 0.5
        assert (linear.bias == 0).all()


def test_swiglu_drops_at_its_end():
    layer = SwiGLU(4, 6, dropout=0.5, bias=False)
    out = layer(torch.ones(2, 50, 4))
    assert 0.3 < (out == 0).float().mean() < 0.7
    assert (layer.eval()(torch.ones(1, 1, 4)) != 0).all()
    with pytest.raises(ConfigError, match="is not a probability below 1"):
        SwiGLU(4, 6, dropout=1.0)


@pytest.mark.parametrize("feed", [MLP, SwiGLU])
def test_device_dtype_and_bias(feed):
    layer = feed(4, 6, bias=False, device="meta", dtype=torch.bfloat16)
    assert not any(name.endswith("bias") for name in layer.state_dict())
    for parameter in layer.parameters():
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.bfloat16)
