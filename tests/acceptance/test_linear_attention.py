"""Causal means causal, rows are independent, states are fp32: kernels of feature maps.

That approximations converge is in the definition tests of Favor and Rfa.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest
import torch

from suffice import Attention, preset
from suffice.testing import assert_close, drawn, normal

# inputs so large that features vanish
pytestmark = pytest.mark.filterwarnings("ignore:.*vanish:RuntimeWarning")

D_MODEL, NUM_HEADS, LENGTH = 16, 4, 70
PRESETS = ("linear", "performer", "rfa")
POISONS = (float("nan"), 1e30)


def specs():
    specs = {}
    for name in PRESETS:
        for causal in (False, True):
            spec = preset(name, D_MODEL, NUM_HEADS, causal=causal)
            label = f"causal-{name}" if causal else name
            specs[label] = spec
            specs[f"{label}-gqa"] = replace(spec, num_kv_heads=2)
    return specs


SPECS = specs()
NAMES = tuple(SPECS)
CAUSAL = tuple(name for name in NAMES if SPECS[name].pattern.causal)


def layer_of(name, dtype=torch.float64, impl="auto"):
    return drawn(Attention(SPECS[name], impl=impl, dtype=torch.float64), seed=6).to(dtype)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_future_changes_nothing(name, factor):
    """A stabiliser shared with later keys would make earlier rows underflow or round."""
    layer, x = layer_of(name, torch.float32), normal(2, LENGTH, D_MODEL, seed=1).float()
    want = layer(x)
    for now in (1, 2, 16, 33, 63, 64, 65, 69):
        other = x.clone()
        other[:, now:] = factor * normal(2, LENGTH - now, D_MODEL, seed=now)
        assert_close(layer(other)[:, :now], want[:, :now], n=LENGTH)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_large_and_small_inputs_stay_finite(name, dtype, size):
    layer = layer_of(name, dtype)
    x = (size * normal(2, LENGTH, D_MODEL, seed=1)).to(dtype).requires_grad_()
    out = layer(x)
    assert torch.isfinite(out).all()
    gradients = torch.autograd.grad(out.float().square().mean(), [x, *layer.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("name", [f"causal-{name}" for name in PRESETS] + list(PRESETS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_long_sums_of_half_inputs(name, dtype):
    """A normaliser kept in half would stop growing, or overflow, long before position 3000."""
    layer = layer_of(name, dtype)
    x = normal(1, 3000, D_MODEL, seed=1, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = layer(x)
    assert got.dtype is dtype
    want = copy.deepcopy(layer).double()(x.double())
    assert torch.isfinite(got).all()
    assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["causal-linear", "linear"])
def test_sums_beyond_the_range_of_half(name, dtype):
    """Features of 50 and their products add up to millions; fp16 ends at 65504."""
    layer = layer_of(name, dtype)
    x = (20 + normal(1, 3000, D_MODEL, seed=1)).to(dtype)
    got, want = layer(x), copy.deepcopy(layer).double()(x.double())
    assert torch.isfinite(got).all()
    assert (got.double() - want).abs().max() <= 2e-2 * want.abs().max()
