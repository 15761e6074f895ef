"""Rotary positions: distances only, lengths kept, fp32 angles; what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from suffice.errors import ConfigError
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    NTKScaling,
    Rope,
    YarnScaling,
)
from suffice.positions.rope import CACHED_ANGLES
from suffice.testing import assert_close, normal

FORMS = (
    Rope(),
    Rope(100.0, layout="interleaved"),
    Rope(features=4),
    Rope(features=6, layout="interleaved"),
    Rope(scaling=LinearScaling(4.0)),
    Rope(scaling=NTKScaling(2.0), features=6),
    Rope(500_000.0, scaling=Llama3Scaling(8.0, length=64)),
    Rope(scaling=YarnScaling(4.0, length=64, fast=4.0), layout="interleaved"),
    Rope(scaling=YarnScaling(4.0, length=64, fast=4.0, attention_factor=2.0), features=2),
)
EACH = pytest.mark.parametrize("rope", FORMS, ids=repr)


def rotated(rope, row, position):
    """One head [D] at one position, pair by pair."""
    width = rope.features or len(row)
    frequencies = [rope.theta ** (-2 * i / width) for i in range(width // 2)]
    amplitude = 1.0
    if rope.scaling is not None:
        frequencies = rope.scaling.frequencies(rope.theta, width).tolist()
        amplitude = rope.scaling.amplitude
    out = list(row)
    for i, frequency in enumerate(frequencies):
        first, second = (2 * i, 2 * i + 1) if rope.layout == "interleaved" else (i, i + width // 2)
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        out[first] = amplitude * (row[first] * cos - row[second] * sin)
        out[second] = amplitude * (row[first] * sin + row[second] * cos)
    return out


@EACH
@pytest.mark.parametrize("at", [[0, 1, 2], [7, 0, 1857], [3, 100_000, 5], [-4, 2, 9]], ids=str)
def test_each_pair_rotates_by_its_angle(rope, at):
    x = normal(1, 2, 3, 8, seed=1)
    want = [[rotated(rope, r, p) for r, p in zip(h, at, strict=True)] for h in x[0].tolist()]
    assert_close(rope.rotate(x, torch.tensor(at)), torch.tensor([want], dtype=torch.float64))


@EACH
def test_cached_factors_are_the_computed_ones(rope):
    at = torch.tensor([0, 3, 64, 65, 1857])
    for dtype in (torch.float32, torch.float64):
        computed = rope._compute(at, rope.features or 8, dtype)
        for factors, fresh in zip(rope.cos_sin(at, 8, dtype), computed, strict=True):
            assert_close(factors[0], fresh)


def test_a_table_cached_in_inference_serves_training():
    rope, x = Rope(theta=77.0), normal(1, 1, 3, 8, seed=1)
    with torch.inference_mode():
        rope.rotate(x, torch.arange(3))
    x.requires_grad_()
    rope.rotate(x, torch.arange(3)).sum().backward()
    assert x.grad is not None


def test_positions_beyond_the_cached_tables():
    x = normal(1, 1, 1, 8, seed=1)
    far = CACHED_ANGLES // 8 + 5
    want = rotated(Rope(), x.flatten().tolist(), far)
    got = Rope().rotate(x, torch.tensor([far])).flatten()
    assert (got - torch.tensor(want, dtype=torch.float64)).abs().max() <= 1e-10  # angles near 1e5


@EACH
def test_compiled(rope):
    torch._dynamo.reset()
    x, at = normal(1, 2, 5, 8, seed=1), torch.arange(5)
    fast = torch.compile(rope.rotate, backend="eager", fullgraph=True)
    assert_close(fast(x, at), rope.rotate(x, at))


@pytest.mark.parametrize("theta", [1.0, 0.5, 0.0, -3.0])
def test_bases(theta):
    with pytest.raises(ConfigError, match=r"Rope\(theta=.*\): give a base above 1"):
        Rope(theta)


@pytest.mark.parametrize("features", [0, -2, 3, 1])
def test_an_odd_number_of_features_is_refused(features):
    with pytest.raises(ConfigError, match=rf"features={features}"):
        Rope(features=features)


def test_layouts():
    with pytest.raises(ConfigError, match="'halves'"):
        Rope(layout="halves")


@pytest.mark.parametrize("scaling", ["linear", 4.0, NoPosition(), object(), LinearScaling])
def test_a_scaling_of_another_type_is_refused(scaling):
    legal = r"Rope\(scaling=.*\): give an instance of FastPairs, LinearScaling, Llama3Sc"
    with pytest.raises(ConfigError, match=legal):
        Rope(scaling=scaling)


def test_head_widths_that_cannot_be_rotated():
    assert Rope().conflicts(8) == NoPosition().conflicts(7) == []
    assert Rope(features=4).conflicts(7) == Rope(features=4).conflicts(4) == []
    (reason,) = Rope().conflicts(7)
    assert "head_dim=7" in reason
    (reason,) = Rope(features=4).conflicts(3)
    assert "features=4" in reason
    assert "head_dim=3" in reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rotation_in_lower_types_is_the_rounded_rotation(dtype):
    x = normal(1, 2, 5, 8, seed=1, dtype=dtype)
    at = torch.tensor([0, 7, 511, 1857, 100_000])
    got = Rope().rotate(x, at)
    assert got.dtype is dtype
    exact = Rope().rotate(x.double(), at)
    assert_close(got, exact, n=2)
    if dtype is not torch.float32:  # rounded once: products and sums are fp32
        assert (got == exact.to(dtype)).double().mean() > 0.95


def test_no_position_does_nothing():
    still = NoPosition()
    assert (still.absolute, still.rotates, still.biases) == (False, False, False)
    assert (Rope().absolute, Rope().rotates, Rope().biases) == (True, True, False)
    x = normal(1, 1, 2, 4, seed=1)
    with pytest.raises(NotImplementedError, match="NoPosition"):
        still.rotate(x, torch.arange(2))
    with pytest.raises(NotImplementedError, match="NoPosition"):
        still.rotate_by(x, ())
    with pytest.raises(NotImplementedError, match="NoPosition"):
        still.bias(2, torch.arange(2)[:, None], torch.arange(2))


@EACH
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 5e-4), (torch.bfloat16, 4e-3)])
def test_factors_at_position_1857_in_half_types(rope, dtype, bound):
    x = torch.eye(8).to(dtype)[None, :, None]  # a head for each unit vector
    got = rope.rotate(x, torch.tensor([1857]))[0, :, 0].double()
    want = [rotated(rope, row, 1857) for row in torch.eye(8).tolist()]
    want = torch.tensor(want, dtype=torch.float64)
    amplitude = 1.0 if rope.scaling is None else rope.scaling.amplitude
    assert (got - want).abs().max() <= bound * amplitude
