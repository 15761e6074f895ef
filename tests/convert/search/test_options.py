"""What layers may become, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suffice.convert.search import library
from suffice.convert.search.options import contains, memory_of, parameters, state_bytes
from suffice.convert.search.timing import prefill, state_for
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised, Standard
from suffice.errors import ConfigError
from suffice.memory import Dynamic, Rolling
from suffice.mixing import Alignment
from suffice.patterns import Causal, Global, Strided, Window
from suffice.positions import Rope

from .models import LENGTH, model


def words(lm, length=64, **given):
    return [one.words for one in library(lm, length, **given)["blocks.0.attention"]]


def test_all_that_is_legal_is_offered_once():
    found = words(model())
    assert found[:3] == ["keep", "gqa:2", "gqa:1"]
    assert {"optimised:4", "efficient:1", "input", "latent:16", "latent:2"} <= set(found)
    windows = {"window:48+sinks:0", "window:32+sinks:0", "window:28+sinks:4"}
    assert windows | {"gqa:1,window:12+sinks:4"} <= set(found)
    assert not any(word.startswith("super") for word in found)
    specs = [one.change.spec for one in library(model(), 64)["blocks.0.attention"]]
    assert len(set(map(repr, specs))) == len(specs)


def test_a_layer_that_turns_has_no_latent_and_one_of_few_heads_fewer():
    found = words(model(position=Rope()))
    assert not any("latent" in word or "input" in word for word in found)
    shared = words(model(num_kv_heads=2))
    assert "gqa:2" not in shared
    assert "gqa:1" in shared
    assert "optimised:4" not in shared


def test_a_normalised_layer_keeps_its_keys():
    found = words(model(norm=HeadRMS()))
    assert not any(word.startswith(("efficient", "latent", "input")) for word in found)
    windows = {"optimised:1,window:12+sinks:4", "window:48+sinks:0"}
    assert {"gqa:1", "optimised:4"} | windows <= set(found)


def test_a_layer_that_mixes_keeps_its_maps():
    found = words(model(mixing=Alignment(LENGTH), encoder=Efficient()), LENGTH)
    assert all(word == "keep" or word.startswith("window") for word in found)
    assert len(found) > 1


def test_words_may_be_given():
    assert words(model(), words=["gqa:2", "gqa:2", "gqa:3", "window:8"]) == [
        "keep",
        "gqa:2",
        "window:8",
    ]
    with pytest.raises(ConfigError, match="linear"):
        library(model(), 64, ["linear"])
    with pytest.raises(ConfigError, match="nothing to choose from"):
        library(model(), 64, ["gqa:3"])


def test_an_encoder_contains_those_after_it():
    spec = model().specs[0]
    kinds = [replace(spec, encoder=kind) for kind in (Standard(), Optimised(), Efficient())]
    for a, one in enumerate(kinds):
        for b, other in enumerate(kinds):
            assert contains(one, other) == (a < b)
    assert not contains(spec, replace(kinds[2], num_kv_heads=2))
    assert not contains(spec, replace(spec, encoder=Latent(), num_kv_heads=1, head_dim=4))


def spec_of(pattern):
    return replace(model().specs[0], pattern=pattern)


PATTERNS = {
    "all": (Causal(), 30, Dynamic()),
    "window": (Window(8) & Causal(), 8, Rolling(8, spare=1)),
    "sinks": ((Window(8) | Global(2)) & Causal(), 10, Rolling(8, sinks=2, spare=1)),
    "narrower": (Window(6) & Window(8) & Causal(), 6, Rolling(6, spare=1)),
    "no sinks": (Window(6) & (Window(8) | Global(2)) & Causal(), 6, Rolling(6, spare=1)),
    "strided": (Strided(3) & Causal(), 30, Dynamic()),
    "wider": ((Window(3) | Window(4)) & Causal(), 4, Rolling(4, spare=1)),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_state_keeps_the_positions_in_reach(name):
    pattern, seen, memory = PATTERNS[name]
    spec = spec_of(pattern)
    assert state_bytes(spec, 30) == seen * 2 * 16 * 4
    assert state_bytes(spec, 30, rolls=False) == 30 * 2 * 16 * 4
    assert memory_of(spec) == memory


def test_costs_are_those_of_real_layers():
    lm = model()
    assert parameters(lm.specs[0]) == sum(p.numel() for p in lm.blocks[0].attention.parameters())
    state = state_for(lm, "torch")
    prefill(lm, state, LENGTH)
    assert state.length == LENGTH
    assert state.nbytes >= sum(state_bytes(spec, LENGTH) for spec in lm.specs)
