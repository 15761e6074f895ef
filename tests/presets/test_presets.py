"""Published mechanisms by name."""

from __future__ import annotations

import json

import pytest

from suffice import AttentionSpec, preset
from suffice.encoders import Efficient, Optimised, Standard
from suffice.errors import ConfigError
from suffice.mixing import Alignment, NoMixing
from suffice.patterns import Causal, Full
from suffice.presets import PRESETS, is_always_causal, needs_length, takes_length

PROJECTIONS = {
    "standard": Standard(),
    "optimised": Optimised(),
    "efficient": Efficient(),
    "super_attention": Efficient(),
    "gqa": Standard(),
    "mqa": Standard(),
}


def options(name):
    return {"length": 9} if takes_length(name) else {}


@pytest.mark.parametrize("causal", ["no", 1, None])
def test_causal_is_true_or_false(causal):
    with pytest.raises(ConfigError, match=f"causal={causal!r}: give True or False"):
        preset("standard", 16, 4, causal=causal)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("causal", [False, True])
def test_each_is_a_spec_with_the_requested_options(name, causal):
    if is_always_causal(name) and not causal:
        with pytest.raises(ConfigError, match="has no form that looks ahead"):
            preset(name, 16, 4, causal=False)
        return
    if name == "linformer" and causal:
        with pytest.raises(ConfigError, match="LowRank"):
            preset(name, 16, 4, causal=True, **options(name))
        return
    spec = preset(name, 16, 4, causal=causal, bias=False, **options(name))
    assert isinstance(spec, AttentionSpec)
    assert (spec.bias, spec.d_model, spec.num_heads) == (False, 16, 4)
    assert spec.pattern.causal is causal
    assert AttentionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_those_that_see_every_key(name, causal, bias):
    spec = preset(name, 16, 4, causal=causal, bias=bias, dropout=0.25, **options(name))
    assert spec.pattern == (Causal() if causal else Full())
    assert spec.encoder == PROJECTIONS[name]
    assert spec.mixing == (Alignment(9, bias=bias) if name == "super_attention" else NoMixing())
    assert spec.kv_heads == {"gqa": 2, "mqa": 1}.get(name, 4)
    assert (spec.bias, spec.dropout, spec.d_model, spec.num_heads) == (bias, 0.25, 16, 4)


def test_who_needs_a_length_and_who_takes_one():
    assert {"super_attention", "bigbird"} <= {name for name in PRESETS if needs_length(name)}
    for name in PRESETS:
        assert takes_length(name) or not needs_length(name)
        if needs_length(name):
            with pytest.raises(ConfigError, match=r"give\W+length="):
                preset(name, 16, 4)
        else:
            assert preset(name, 16, 4).d_model == 16
    taking = {name for name in PROJECTIONS if takes_length(name)}
    assert taking == {"super_attention"}
    assert takes_length("sliding_window")
    assert not takes_length("star_transformer")


def test_shared_heads():
    assert preset("gqa", 12, 6, num_kv_heads=3).kv_heads == 3
    assert preset("gqa", 12, 3).kv_heads == 1
    with pytest.raises(ConfigError, match="num_heads=1"):
        preset("gqa", 12, 1)
    with pytest.raises(ConfigError, match="num_kv_heads=4"):
        preset("gqa", 12, 6, num_kv_heads=4)


def test_start_of_the_alignment():
    assert preset("super_attention", 16, 4, length=9, init="identity").mixing.init == "identity"


def test_refusals():
    with pytest.raises(ConfigError, match="'eficient'"):
        preset("eficient", 16, 4)
    with pytest.raises(ConfigError, match="'casual'"):
        preset("standard", 16, 4, casual=True)
    with pytest.raises(ConfigError, match="'length'"):
        preset("standard", 16, 4, length=9)
    with pytest.raises(ConfigError, match="super_attention fixes the length of its input"):
        preset("super_attention", 16, 4)
