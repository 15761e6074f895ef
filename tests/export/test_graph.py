"""A model as a function of flat tensors computes what the model computes, any past and chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.errors import CheckpointError, ConfigError
from suffice.export.graph import ClassifierGraph, DecoderGraph, call_arguments, reach
from suffice.export.parity import check_graph, check_model
from suffice.generate.generate import max_length
from suffice.kernels import Elu
from suffice.patterns import Causal, Window

from .models import (
    NEAR,
    ROTARY,
    SPEC,
    STREAMING,
    TURNING,
    bert,
    classifier,
    language,
    pictures,
)

PASTS = (0, 1, 7, 63)


def called(module):
    """Return what calls a module with arrays by name."""
    names = [port.name for port in module.inputs()]

    def call(feeds):
        given = call_arguments(module, [torch.from_numpy(feeds[name]) for name in names])
        found = module(*given)
        return [one.numpy() for one in (found if isinstance(found, tuple) else (found,))]

    return call


@pytest.mark.parametrize("name", STREAMING)
def test_text_in_pieces_gives_the_logits_of_the_model(name):
    spec, sizes = STREAMING[name]
    lm = language(spec, **sizes)
    decoder = DecoderGraph(lm)
    with torch.no_grad():
        found = check_graph(called(decoder), decoder, lm, pasts=PASTS)
    assert found.cases == len(PASTS) * 4
    assert found.difference < 1e-5


def test_calls_beyond_the_positions_are_left_out():
    lm = language(depth=1, length=12)
    decoder = DecoderGraph(lm)
    with torch.no_grad():
        assert check_graph(called(decoder), decoder, lm, pasts=(0, 8)).cases == 6


def test_a_state_has_the_tensors_that_the_layer_caches():
    kept = [port.name for port in DecoderGraph(language()).inputs() if port.becomes]
    assert kept == ["past.places", "past.0.keys_and_values", "past.1.keys_and_values"]
    assert [*DecoderGraph(language(TURNING, **ROTARY, depth=1)).state[0]] == ["keys", "values"]
    spec, sizes = STREAMING["super"]
    assert [*DecoderGraph(language(spec, **sizes, depth=1)).state[0]] == ["keys", "values"]
    spec, sizes = STREAMING["standard alignment"]
    decoder = DecoderGraph(language(spec, **sizes, depth=1))
    assert [*decoder.state[0]] == ["keys", "values", "values_before_mixing"]
    port = decoder.inputs()[-1]
    assert port.shape == ("batch", 4, "past", 8)
    assert port.to_json()["dynamic_axes"] == {"0": "batch", "2": "past"}
    assert port.becomes == decoder.outputs()[-1].name


def test_how_far_a_model_reads_and_reaches():
    assert (reach(language()), max_length(language())) == (None, 80)
    lm = language(replace(TURNING, pattern=NEAR), **ROTARY)
    assert (reach(lm), max_length(lm)) == (5, None)
    spec, _ = STREAMING["super"]
    assert max_length(language(spec, positions="none")) == 80
    assert reach(language(replace(spec, pattern=NEAR))) is None


def test_a_model_reaches_as_far_as_its_farthest_layer():
    near, far = (replace(SPEC, pattern=Window(size) & Causal()) for size in (3, 7))
    assert reach(language([near, far])) == reach(language([far, near])) == 7
    assert reach(language([near, SPEC])) is None


WHOLES = {
    "classifier": classifier(),
    "padding is read": classifier(reads_padding=True),
    "alignment": classifier(preset("super_attention", 32, 4, length=80)),
    "sums": classifier(preset("linear", 32, 4)),
    "stabilised sums": classifier(preset("performer", 32, 4, features=16)),
    "causal sums": classifier(replace(preset("performer", 32, 4, causal=True), num_kv_heads=2)),
    "recurrence": classifier(preset("mamba2", 32, 4)),
    "linformer": classifier(preset("linformer", 32, 4, length=80)),
    "bert": bert(),
    "pictures": pictures(),
    "pictures, alignment": pictures(preset("super_attention", 32, 4, length=5)),
}


@pytest.mark.parametrize("name", WHOLES)
def test_models_of_whole_inputs(name):
    model = WHOLES[name]
    module = ClassifierGraph(model)
    with torch.no_grad():
        found = check_graph(called(module), module, model)
    assert found.difference < 1e-5
    assert module.masks == (name not in ("padding is read", *[n for n in WHOLES if "pict" in n]))


def test_a_graph_that_computes_something_else_is_refused():
    lm = language(depth=1)
    other = DecoderGraph(language(depth=1, seed=4))
    with pytest.raises(CheckpointError, match="does not compute the same"):
        check_graph(called(other), other, lm, pasts=(0,))


def test_exports_that_give_nan_are_refused():
    lm, other = language(depth=1), language(depth=1)
    other.norm.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match="nan"):
        check_model(other, lm)
    with pytest.raises(CheckpointError, match="nan"):
        check_model(lm, other)


REFUSED = {
    "mixed sums": (
        replace(preset("toeplitz_super", 32, 4, causal=True), kernel=Elu()),
        "mixing=ToeplitzAlignment",
    ),
    "infini": (
        preset("infini", 32, 4, segment=8),
        "Infini compresses",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_no_graph_holds_are_refused(name):
    spec, told = REFUSED[name]
    with pytest.raises(ConfigError, match=f"layer 0: {told}"):
        DecoderGraph(language(spec))
