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
from suffice.errors import SufficeError
from suffice.testing import assert_close, bits, drawn, normal

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


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("poison", POISONS)
def test_nothing_in_the_future_is_read(name, poison):
    layer, x = layer_of(name, torch.float32), normal(2, LENGTH, D_MODEL, seed=1).float()
    want = layer(x)
    for now in (65, 64, 16, 1):
        x[:, now:] = poison
        assert_close(layer(x)[:, :now], want[:, :now], n=LENGTH)


@pytest.mark.parametrize("name", NAMES)
def test_documents_stand_alone(name):
    layer, x = layer_of(name), normal(2, LENGTH, D_MODEL, seed=1)
    cuts = [0, 1, 5, 33, 64, LENGTH]
    segments = torch.cat([torch.full((b - a,), a) for a, b in zip(cuts, cuts[1:], strict=False)])
    got = layer(x, segments=segments.expand(2, -1))
    for a, b in zip(cuts, cuts[1:], strict=False):
        assert_close(got[:, a:b], layer(x[:, a:b]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_rows_without_a_key_are_exactly_zero(name, dtype):
    """The output of the layer is then its output bias: the heads give exactly 0."""
    layer = layer_of(name, dtype)
    x = normal(2, 9, D_MODEL, seed=1, dtype=dtype).requires_grad_()
    valid = torch.tensor([[False] * 9, [True] * 9])
    out = layer(x, valid=valid)
    assert torch.equal(out[0], layer.o_proj.bias.expand(9, D_MODEL))
    (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
    assert torch.isfinite(gradient).all()
    assert not gradient[0].any()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CAUSAL])
def test_a_memory_without_a_key_gives_zero(name):
    layer = layer_of(name)
    x, memory = normal(2, 3, D_MODEL, seed=1), normal(2, 5, D_MODEL, seed=2)
    valid = torch.tensor([[True] * 5, [False] * 5])
    out = layer(x, memory, valid=valid)
    assert torch.equal(out[1], layer.o_proj.bias.expand(3, D_MODEL))
    assert_close(out[:1], layer(x[:1], memory[:1]))


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


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("size", [1.0, 5.0])
def test_the_first_row_is_the_first_value(name, size):
    """One key has all the weight, whatever its features are."""
    layer, x = layer_of(name, torch.float32), size * normal(4, 3, D_MODEL, seed=1).float()
    repeated = layer.v_proj(x[:, :1]).unflatten(-1, (-1, 4))
    heads = repeated.repeat_interleave(NUM_HEADS // repeated.shape[2], dim=2).flatten(2)
    assert_close(layer(x)[:, :1], layer.o_proj(heads), n=LENGTH)


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


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_is_refused(name):
    """A sum of features over keys cannot follow an arbitrary mask."""
    layer, x = layer_of(name), normal(2, 6, D_MODEL, seed=1)
    with pytest.raises(SufficeError, match="mask") as error:
        layer(x, mask=bits(2, 1, 6, 6, seed=2))
    assert len(str(error.value).split()) > 8
