"""Every preset and every sample of every axis keeps every promise."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, preset
from suffice.presets import PRESETS, needs_length
from suffice.testing import CHECKS, conform, spec_around

from .cells import KERNELS, MIXINGS, PATTERNS, POSITIONS, PROJECTIONS


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", PRESETS)
def test_preset(name, causal, check):
    length = {"length": 7} if needs_length(name) else {}
    conform(preset(name, 8, 4, causal=causal, **length), length=6, checks=[check])


@pytest.mark.parametrize("value", PATTERNS + PROJECTIONS + MIXINGS + KERNELS + POSITIONS, ids=repr)
@pytest.mark.parametrize("length", [2, 5, 9])
def test_axis_sample(value, length):
    conform(spec_around(value), length=length)


def test_other_sizes_scales_and_settings():
    for spec in (
        AttentionSpec(d_model=6, num_heads=2, head_dim=4, scale=0.2, bias=False),
        AttentionSpec(d_model=6, num_heads=1, dropout=0.5),
        AttentionSpec(d_model=5, num_heads=5),
    ):
        conform(spec)
