"""Linformer by name: the rank it takes from a length, and that it never is causal."""

from __future__ import annotations

import pytest

from suffice import Attention, preset
from suffice.encoders import Standard
from suffice.errors import ConfigError
from suffice.mixing import LowRank
from suffice.patterns import Full


@pytest.mark.parametrize(("length", "rank"), [(512, 128), (9, 2), (3, 1), (1, 1)])
def test_a_quarter_of_the_length(length, rank):
    spec = preset("linformer", 16, 4, length=length)
    assert spec.mixing == LowRank(length, rank)
    assert (spec.pattern, spec.encoder, spec.max_length) == (Full(), Standard(), length)


def test_options():
    spec = preset(
        "linformer", 16, 4, length=9, rank=3, shared=False, per_head=True, bias=False, dropout=0.5
    )
    assert spec.mixing == LowRank(9, 3, shared=False, per_head=True)
    assert (spec.bias, spec.dropout) == (False, 0.5)


def test_parameters():
    spec = preset("linformer", 16, 4, length=32)
    assert spec.cost(32).parameters == 4 * (16 * 16 + 16) + 8 * 32
    assert spec.cost(32).flops == 8 * 32 * 16 * 16 + 8 * 32 * 8 * 16
    built = sum(p.numel() for p in Attention(spec, device="meta").parameters())
    assert built == spec.cost(32).parameters


def test_refusals():
    with pytest.raises(ConfigError, match="linformer fixes the length of its input"):
        preset("linformer", 16, 4)
    with pytest.raises(ConfigError, match="LowRank sums keys of all positions"):
        preset("linformer", 16, 4, length=9, causal=True)
    with pytest.raises(ConfigError, match="length='9'"):
        preset("linformer", 16, 4, length="9")
    with pytest.raises(ConfigError, match="length=9.*rank=0"):
        preset("linformer", 16, 4, length=9, rank=0)
