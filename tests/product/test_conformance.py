"""Every preset and every sample of every axis keeps every promise."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.combine import Combine
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised
from suffice.kernels import Elu
from suffice.memory.past import Infini
from suffice.mixing import LowRank, ToeplitzAlignment
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.presets import PRESETS
from suffice.spec import AXES
from suffice.testing import conform, spec_around
from tests.acceptance.mechanisms import PRESET_KINDS, spec_of


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name):
    causal = f"causal-{name}" in PRESET_KINDS
    conform(spec_of(name, causal=causal, d_model=8, num_heads=4, length=7), length=6)


SAMPLES = [
    sample
    for family in AXES.values()
    if family is not Combine
    for value in family.table.values()
    if value.__module__.startswith("suffice.")
    for sample in value.samples()
]


@pytest.mark.parametrize("value", SAMPLES, ids=repr)
def test_axis_sample(value):
    conform(spec_around(value), length=9)


@pytest.mark.parametrize("value", {type(value): value for value in SAMPLES}.values(), ids=repr)
def test_two_positions(value):
    conform(spec_around(value), length=2)


@pytest.mark.parametrize(
    "beside",
    [
        (Efficient(), Rope()),
        (Optimised(),),
        (Latent(),),
        (LowRank(9, 2),),
        (ToeplitzAlignment(3), Efficient(), Causal()),
        (Elu(), Causal()),
        (Infini(2, delta=True), Rope()),
    ],
    ids=lambda values: "-".join(type(value).__name__ for value in values),
)
def test_normalised_queries_and_keys(beside):
    heads = 2 if isinstance(beside[0], Optimised) else 1
    conform(spec_around(HeadRMS(0.1), *beside, num_kv_heads=heads), length=6)


def test_other_sizes_scales_and_settings():
    for spec in (
        AttentionSpec(d_model=6, num_heads=2, head_dim=4, scale=0.2, bias=False),
        AttentionSpec(d_model=6, num_heads=1, dropout=0.5),
        AttentionSpec(d_model=5, num_heads=5),
    ):
        conform(spec)
