"""The norms by name, and the RMS norm as a layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.layers import RMSNorm
from suffice.layers.basic import normalisation
from suffice.testing import assert_close, normal


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_rms_norm(dtype):
    layer = RMSNorm(6, eps=0.1, dtype=dtype)
    assert torch.equal(layer.weight, torch.ones(6, dtype=dtype))
    with torch.no_grad():
        layer.weight.copy_(normal(6, seed=1))
    x = normal(2, 3, 6, seed=2, dtype=dtype)
    mean = x.double().square().mean(dim=-1, keepdim=True)
    assert_close(layer(x), x.double() / (mean + 0.1).sqrt() * layer.weight.double())
    assert repr(layer) == "RMSNorm(6, eps=0.1)"
    assert list(layer.state_dict()) == ["weight"]


def test_norms_by_name():
    factory = {"device": "meta", "dtype": torch.float16}
    layer = normalisation("layer", 4, eps=0.5, bias=False, **factory)
    assert isinstance(layer, nn.LayerNorm)
    assert (layer.eps, layer.bias) == (0.5, None)
    rms = normalisation("rms", 4, eps=0.25, bias=True, **factory)
    assert isinstance(rms, RMSNorm)
    assert rms.eps == 0.25
    for norm in (layer, rms):
        assert (norm.weight.device.type, norm.weight.dtype) == ("meta", torch.float16)
    assert normalisation("layer", 4, eps=0.5).bias.shape == (4,)
    with pytest.raises(ConfigError, match="unknown normalisation 'rsm'; did you mean 'rms'"):
        normalisation("rsm", 4, eps=0.5)
