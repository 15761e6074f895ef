"""Stretched frequencies, written again pair by pair; what is refused."""

from __future__ import annotations

import json
import math

import pytest
import torch

from suffice.errors import ConfigError
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    PairScaling,
    Scaling,
    YarnScaling,
)
from suffice.testing import assert_close

THETAS = (10_000.0, 500_000.0)
WIDTHS = (2, 4, 64, 128)


def own(theta, features):
    return [theta ** (-2 * i / features) for i in range(features // 2)]


def linear(scaling, theta, features):
    return [f / scaling.factor for f in own(theta, features)]


def ntk(scaling, theta, features):
    if features == 2:
        return [1.0]
    return own(theta * scaling.factor ** (features / (features - 2)), features)


def llama3(scaling, theta, features):
    out = []
    for f in own(theta, features):
        wavelength = 2 * math.pi / f
        if wavelength < scaling.length / scaling.high:
            out.append(f)
        elif wavelength > scaling.length / scaling.low:
            out.append(f / scaling.factor)
        else:
            smooth = (scaling.length / wavelength - scaling.low) / (scaling.high - scaling.low)
            out.append((1 - smooth) * f / scaling.factor + smooth * f)
    return out


def yarn(scaling, theta, features):
    def pair(turns):
        within = scaling.length / (2 * math.pi * turns)
        return features * math.log(within) / (2 * math.log(theta))

    first, last = pair(scaling.fast), pair(scaling.slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, features - 1)
    out = []
    for i, f in enumerate(own(theta, features)):
        ramp = (i - first) / (last - first if last > first else 0.001)
        ramp = min(max(ramp, 0.0), 1.0)
        out.append(f / scaling.factor * ramp + f * (1 - ramp))
    return out


CASES = [
    (LinearScaling(1.0), linear),
    (LinearScaling(8.0), linear),
    (NTKScaling(1.0), ntk),
    (NTKScaling(4.0), ntk),
    (Llama3Scaling(8.0), llama3),
    (Llama3Scaling(32.0, length=2048, low=0.5, high=2.0), llama3),
    (YarnScaling(4.0, length=4096), yarn),
    (YarnScaling(40.0, length=4096, fast=64.0, slow=0.5), yarn),
    (YarnScaling(32.0, length=4096, truncate=False), yarn),
    (YarnScaling(2.0, length=8, fast=2.0), yarn),
]


def name(value):
    return getattr(value, "__name__", None) or repr(value)


@pytest.mark.parametrize(("scaling", "formula"), CASES, ids=name)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("features", WIDTHS)
def test_frequencies(scaling, formula, theta, features):
    got = scaling.frequencies(theta, features)
    assert got.dtype is torch.float64
    assert_close(got, torch.tensor(formula(scaling, theta, features), dtype=torch.float64))


@pytest.mark.parametrize(("scaling", "formula"), CASES, ids=name)
def test_no_pair_is_sped_up_or_slowed_by_more_than_the_factor(scaling, formula):
    ratios = torch.tensor(own(1e4, 64), dtype=torch.float64) / scaling.frequencies(1e4, 64)
    assert ratios.min() >= 1 - 1e-12
    assert ratios.max() <= scaling.factor * (1 + 1e-12)
    assert (ratios.diff() >= -1e-12).all()


def test_a_published_configuration():
    """Llama 3.1: 64 pairs, the first 29 kept, the last 29 an eighth."""
    got = Llama3Scaling(8.0, length=8192, low=1.0, high=4.0).frequencies(500_000.0, 128)
    ratios = torch.tensor(own(500_000.0, 128), dtype=torch.float64) / got
    assert (ratios == 1).sum() == 29
    assert ((ratios - 8).abs() < 1e-9).sum() == 29


def test_amplitudes():
    for scaling in (LinearScaling(4.0), NTKScaling(4.0), Llama3Scaling(4.0)):
        assert scaling.amplitude == 1.0
    assert YarnScaling(4.0, length=9).amplitude == 0.1 * math.log(4.0) + 1.0
    assert YarnScaling(1.0, length=9).amplitude == 1.0
    assert YarnScaling(4.0, length=9, attention_factor=0.5).amplitude == 0.5


@pytest.mark.parametrize("value", [s for kind in Scaling.table.values() for s in kind.samples()])
def test_json(value):
    assert Scaling.from_json(json.loads(json.dumps(value.to_json()))) == value


@pytest.mark.parametrize("factor", [0.5, 0.0, -2.0])
@pytest.mark.parametrize(
    "make",
    [LinearScaling, NTKScaling, Llama3Scaling, lambda factor: YarnScaling(factor, length=9)],
)
def test_factors(make, factor):
    with pytest.raises(ConfigError, match=r"Scaling\(factor=.*\): give the new length over the tr"):
        make(factor)


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"low": 0.0}, {"low": 4.0}, {"low": 5.0}, {"high": 1.0}]
)
def test_turns_of_llama3(wrong):
    with pytest.raises(ConfigError, match=r"Llama3Scaling\(length=.*with 0 < low < high"):
        Llama3Scaling(8.0, **wrong)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"slow": 0.0}, {"slow": 32.0}, {"fast": 1.0}])
def test_turns_of_yarn(wrong):
    with pytest.raises(ConfigError, match=r"YarnScaling\(length=.*with 0 < slow < fast"):
        YarnScaling(4.0, **{"length": 64, **wrong})


def test_an_attention_factor_that_is_none():
    with pytest.raises(ConfigError, match="attention_factor=0"):
        YarnScaling(4.0, length=64, attention_factor=0.0)


def test_what_is_no_number():
    with pytest.raises(ConfigError, match="factor='4'"):
        LinearScaling("4")


@pytest.mark.parametrize(
    "wrong", [{"factors": ()}, {"factors": (1.0, 0.0)}, {"attention_factor": 0.0}]
)
def test_factors_of_pairs_are_above_zero(wrong):
    with pytest.raises(ConfigError, match=r"PairScaling\(.*: give a number above 0 for each pair"):
        PairScaling(**{"factors": (1.0,), **wrong})
