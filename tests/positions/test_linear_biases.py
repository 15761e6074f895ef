"""Alibi: slopes of any number of heads, distances, and what it goes with."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention
from suffice.errors import ConfigError
from suffice.kernels import Kernel
from suffice.patterns import Causal
from suffice.positions import Alibi, Position
from suffice.testing import drawn, normal, spec_around


def test_what_it_is():
    assert Alibi().absolute
    assert Alibi().biases
    assert not Alibi().rotates
    assert Alibi().conflicts(7) == []
    assert Position.from_json(Alibi().to_json()) == Alibi()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_far_distances_in_lower_types(dtype):
    """A bias of 1e3 has steps of 0.5 and more in half types; inside it is fp32."""
    layer = drawn(Attention(spec_around(Alibi(), Causal())), seed=1)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(p.to(dtype))
    x = normal(1, 300, 8, seed=2).to(dtype)
    exact = Attention(layer.spec, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    want = exact(x.double())
    assert (layer.to(dtype)(x).double() - want).abs().max() <= 40 * torch.finfo(dtype).eps


def test_cross_attention_is_refused():
    layer = Attention(spec_around(Alibi()))
    x = torch.zeros(1, 3, 8)
    with pytest.raises(ConfigError, match="position=Alibi"):
        layer(x, x)


def test_kernels_without_products_are_refused():
    kernels = [k.samples()[0] for k in Kernel.table.values() if k.lane != "pairs"]
    for kernel in kernels:
        told = r"position=Alibi\(\) adds to the product of each pair, and .* forms no such products"
        with pytest.raises(ConfigError, match=told):
            spec_around(Alibi(), kernel)
    assert kernels
