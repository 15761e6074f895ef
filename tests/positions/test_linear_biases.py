"""Alibi: slopes of any number of heads, distances, and what it goes with."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention
from suffice.errors import ConfigError
from suffice.kernels import Kernel
from suffice.patterns import Causal
from suffice.positions import Alibi, Position
from suffice.testing import assert_close, drawn, normal, spec_around


def slopes(heads):
    return (-Alibi().bias(heads, torch.tensor([[1]]), torch.tensor([[0]]))).flatten()


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_powers_of_two(heads):
    want = [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]
    assert_close(slopes(heads), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 12, 20, 25])
def test_other_numbers_of_heads(heads):
    power = max(p for p in (1, 2, 4, 8, 16) if p <= heads)
    want = torch.cat([slopes(power), slopes(2 * power)[::2][: heads - power]])
    assert_close(slopes(heads), want, "exact")
    assert len(set(slopes(heads).tolist())) == heads


def test_bias_is_the_distance_times_the_slope():
    q, k = (
        torch.tensor([[[[5], [0]]], [[[2], [9]]]]),
        torch.tensor([[[[0, 5, 9]]], [[[3, 3, 100]]]]),
    )
    got = Alibi().bias(2, q, k)
    assert got.shape == (2, 2, 2, 3)
    assert got.dtype is torch.float64
    assert_close(got[0, 0], -torch.tensor([[5.0, 0, 4], [0, 5, 9]]).double() / 16)
    assert_close(got[1, 1], -torch.tensor([[1.0, 1, 98], [6, 6, 91]]).double() / 256)


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
