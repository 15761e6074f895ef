"""Rope: feature pair i of a query or key at position p turns by p theta^(-2i/D).

Pair i is (i, i + D/2), or interleaved (2i, 2i + 1); D is the width of a head, or as many of its
leading features as turn.
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised, Standard
from suffice.patterns import Causal, Full
from suffice.positions import (
    FastPairs,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Rope,
    YarnScaling,
)
from suffice.testing import assert_close, documents, normal, padded

from .loops import built, everything, gradients_agree, tensor, up_to_self
from .rotations import of_layer, plain, spun


@pytest.mark.parametrize(
    "encoder",
    [Standard(), Optimised(), Efficient()],
    ids=["standard", "optimised", "efficient"],
)
def test_keys_turn_and_values_do_not(encoder):
    """Where K = V = X this tells whether V was rotated along with K."""
    layer = built(AttentionSpec(d_model=8, num_heads=2, encoder=encoder, position=Rope(100.0)))
    x = normal(2, 7, 8, seed=1)
    rows = [of_layer(layer, r, plain(100.0, 4)) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("causal", [False, True])
def test_positions_count_real_tokens(side, causal):
    pattern, see = (Causal(), up_to_self) if causal else (Full(), everything)
    layer = built(AttentionSpec(d_model=8, num_heads=2, pattern=pattern, position=Rope()))
    x, valid = normal(4, 6, 8, seed=2), padded(4, 6, side)
    got = layer(x, valid=valid)
    for row, keep, out in zip(x, valid, got, strict=True):
        want = of_layer(layer, row[keep].tolist(), plain(10_000.0, 4), see=see)
        assert_close(out[keep], tensor(want))


def test_positions_restart_in_each_document():
    layer = built(AttentionSpec(d_model=8, num_heads=2, position=Rope()))
    x, segments = normal(3, 8, 8, seed=2), documents(3, 8, seed=1)
    got = layer(x, segments=segments)
    for row, numbers, out in zip(x, segments, got, strict=True):
        for number in numbers.unique():
            here = numbers == number
            want = of_layer(layer, row[here].tolist(), plain(10_000.0, 4))
            assert_close(out[here], tensor(want))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("features", [None, 2, 4, 6, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_layouts_and_leading_features(length, layout, features, causal):
    pattern, see = (Causal(), up_to_self) if causal else (Full(), everything)
    rope = Rope(50.0, layout=layout, features=features)
    spec = AttentionSpec(d_model=16, num_heads=2, num_kv_heads=1, pattern=pattern, position=rope)
    layer, x = built(spec), normal(2, length, 16, seed=length)
    frequencies = plain(50.0, features or 8)
    rows = [of_layer(layer, r, frequencies, see=see) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))


def linear_scaling(theta, width, factor):
    """Position p counts as p / factor."""
    return [f / factor for f in plain(theta, width)]


def ntk(theta, width, factor):
    """The base grows by factor^(D / (D - 2)); D = 2 has one pair, of frequency 1 for any base."""
    return plain(theta * factor ** (width / (width - 2)), width) if width > 2 else [1.0]


def llama3(theta, width, factor, length, low, high):
    """Wavelengths below length / high stay, above length / low grow by the factor."""
    out = []
    for frequency in plain(theta, width):
        wavelength = 2 * math.pi / frequency
        if wavelength < length / high:
            out.append(frequency)
        elif wavelength > length / low:
            out.append(frequency / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            out.append((1 - smooth) * frequency / factor + smooth * frequency)
    return out


def yarn(theta, width, factor, length, fast=32.0, slow=1.0, *, truncate=True):
    """A ramp over the pairs between those that turn `fast` and `slow` times in `length`.

    As the authors' program and the published weights have it: the ends of the ramp are held
    within 0 and D - 1, and are at least 0.001 apart.
    """

    def pair(turns):
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(fast), pair(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    last = last + 0.001 if first == last else last
    out = []
    for i, frequency in enumerate(plain(theta, width)):
        ramp = min(max((i - first) / (last - first), 0.0), 1.0)
        out.append(frequency * (1 - ramp) + frequency / factor * ramp)
    return out


def fast_pairs(theta, width, share):
    """Frequencies of the first pairs; the others stand still."""
    kept = max(1, math.floor(share * (width // 2)))
    return plain(theta, width)[:kept] + [0.0] * (width // 2 - kept)


def attention_factor(factor):
    return 0.1 * math.log(factor) + 1


SCALINGS = {
    "none": (None, lambda theta, width: (plain(theta, width), 1.0)),
    "linear": (LinearScaling(4.0), lambda *a: (linear_scaling(*a, 4.0), 1.0)),
    "fast": (FastPairs(0.5), lambda *a: (fast_pairs(*a, 0.5), 1.0)),
    "fast-quarter": (FastPairs(0.25), lambda *a: (fast_pairs(*a, 0.25), 1.0)),
    "ntk": (NTKScaling(3.0), lambda *a: (ntk(*a, 3.0), 1.0)),
    "llama3": (
        Llama3Scaling(8.0, length=64, low=1.0, high=4.0),
        lambda *a: (llama3(*a, 8.0, 64, 1.0, 4.0), 1.0),
    ),
    "llama3-of-short-training": (
        Llama3Scaling(32.0, length=2048, low=0.5, high=2.0),
        lambda *a: (llama3(*a, 32.0, 2048, 0.5, 2.0), 1.0),
    ),
    "yarn": (
        YarnScaling(4.0, length=256),
        lambda *a: (yarn(*a, 4.0, 256), attention_factor(4.0)),
    ),
    "yarn-exact-ends": (
        YarnScaling(4.0, length=256, truncate=False),
        lambda *a: (yarn(*a, 4.0, 256, truncate=False), attention_factor(4.0)),
    ),
    "yarn-of-few-turns": (
        YarnScaling(2.0, length=8, fast=2.0),
        lambda *a: (yarn(*a, 2.0, 8, 2.0), attention_factor(2.0)),
    ),
    "yarn-of-short-training": (
        YarnScaling(2.0, length=16, fast=8.0, slow=0.5, attention_factor=1.0),
        lambda *a: (yarn(*a, 2.0, 16, 8.0, 0.5), 1.0),
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("theta", [100.0, 10_000.0])
@pytest.mark.parametrize("width", [2, 4, 16, 64])
def test_scaled_frequencies(name, theta, width):
    """Turning (1, 0) at position 1 shows cosine and sine of each frequency."""
    scaling, definition_of = SCALINGS[name]
    frequencies, amplitude = definition_of(theta, width)
    x = torch.zeros(1, 1, 3, width, dtype=torch.float64)
    x[..., : width // 2] = 1.0
    positions = [0, 1, 12_345]
    got = Rope(theta, scaling=scaling).rotate(x, torch.tensor(positions))
    rows = x[0, 0].tolist()
    want = spun(rows, 1, "half", frequencies, amplitude, positions)
    assert_close(got[0, 0, :2], torch.tensor(want[:2], dtype=torch.float64))
    assert_close(got[0, 0, 2].float(), torch.tensor(want[2], dtype=torch.float64))


def test_the_published_llama_frequencies():
    """Llama 3.1: theta 500,000, heads of 128, factor 8 from 8,192; pairs before and after."""
    rope = Rope(500_000.0, scaling=Llama3Scaling(8.0, length=8192, low=1.0, high=4.0))
    frequencies = llama3(500_000.0, 128, 8.0, 8192, 1.0, 4.0)
    unscaled = plain(500_000.0, 128)
    assert frequencies[0] == unscaled[0]
    assert frequencies[-1] == unscaled[-1] / 8
    assert sum(a != b and 8 * a != b for a, b in zip(frequencies, unscaled, strict=True)) == 6
    x = torch.zeros(1, 1, 1, 128, dtype=torch.float64)
    x[..., :64] = 1.0
    got = rope.rotate(x, torch.tensor([777]))
    want = spun(x[0, 0].tolist(), 1, "half", frequencies, positions=[777])
    assert_close(got[0, 0], torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scaled_layers(name, layout):
    """YaRN's factor multiplies queries and keys, so their products by its square."""
    scaling, definition_of = SCALINGS[name]
    rope = Rope(100.0, layout=layout, features=4, scaling=scaling)
    layer = built(AttentionSpec(d_model=12, num_heads=2, position=rope))
    x = normal(2, 7, 12, seed=1)
    rows = [of_layer(layer, r, *definition_of(100.0, 4)) for r in x.tolist()]
    assert_close(layer(x), tensor(rows))
    again = AttentionSpec.from_json(layer.spec.to_json())
    assert again == layer.spec


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_gradient(layout):
    rope = Rope(100.0, layout=layout, features=2, scaling=LinearScaling(2.0))
    layer = built(AttentionSpec(d_model=8, num_heads=2, position=rope))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))
