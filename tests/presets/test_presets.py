"""Published mechanisms by name."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import Causal, Full
from suffice.presets import PRESETS, needs_length
from suffice.projections import Efficient, Optimised, Standard

PROJECTIONS = {
    "standard": Standard(),
    "optimised": Optimised(),
    "efficient": Efficient(),
    "super_attention": Efficient(),
    "gqa": Standard(),
    "mqa": Standard(),
}


def options(name):
    return {"length": 9} if name == "super_attention" else {}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_each_assembles_axis_values(name, causal, bias):
    spec = preset(name, 16, 4, causal=causal, bias=bias, dropout=0.25, **options(name))
    assert isinstance(spec, AttentionSpec)
    assert spec.pattern == (Causal() if causal else Full())
    assert spec.projections == PROJECTIONS[name]
    assert spec.mixing == (Alignment(9, bias=bias) if name == "super_attention" else NoMixing())
    assert spec.kv_heads == {"gqa": 2, "mqa": 1}.get(name, 4)
    assert (spec.bias, spec.dropout, spec.d_model, spec.num_heads) == (bias, 0.25, 16, 4)


def test_every_preset_is_known_here():
    assert set(PRESETS) == set(PROJECTIONS)
    assert [name for name in PRESETS if needs_length(name)] == ["super_attention"]


def test_shared_heads():
    assert preset("gqa", 12, 6, num_kv_heads=3).kv_heads == 3
    assert preset("gqa", 12, 3).kv_heads == 1
    with pytest.raises(ConfigError, match="num_heads=1 has nothing to share"):
        preset("gqa", 12, 1)
    with pytest.raises(ConfigError, match="num_kv_heads=4 does not divide num_heads=6"):
        preset("gqa", 12, 6, num_kv_heads=4)


def test_start_of_the_alignment():
    assert preset("super_attention", 16, 4, length=9, init="identity").mixing.init == "identity"


def test_refusals():
    with pytest.raises(ConfigError, match="unknown mechanism 'eficient'; did you mean 'efficient'"):
        preset("eficient", 16, 4)
    with pytest.raises(ConfigError, match="unknown option of standard 'casual'; did you mean"):
        preset("standard", 16, 4, casual=True)
    with pytest.raises(ConfigError, match="unknown option of standard 'length'"):
        preset("standard", 16, 4, length=9)
    with pytest.raises(ConfigError, match="super_attention fixes the length of its input; give"):
        preset("super_attention", 16, 4)
