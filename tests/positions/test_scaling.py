"""Stretched frequencies, written again pair by pair; what is refused."""

from __future__ import annotations

import json
import math

import pytest

from suffice.errors import ConfigError
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    PairScaling,
    Scaling,
    YarnScaling,
)


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
