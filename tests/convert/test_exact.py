"""What can be had exactly is recognised, proven in float64, and nothing else is claimed to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, preset
from suffice.convert import convert
from suffice.convert.exact import difference
from suffice.convert.maps import build, read
from suffice.encoders import Efficient, HeadRMS, Optimised
from suffice.errors import ConfigError
from suffice.kernels import Elu
from suffice.layers.packed import PackedLinear
from suffice.mixing import Alignment
from suffice.models import TranslatorConfig
from suffice.positions import Alibi, Rope
from suffice.quantise import quantise
from suffice.testing import assert_close, drawn

from .layers import inputs, layer_of

ROPE = {"position": Rope(features=2), "bias": False}
NORMED = {"norm": HeadRMS(1e-2)}
CASES = {
    "efficient-standard": ({"encoder": Efficient()}, "standard"),
    "efficient-optimised": ({"encoder": Efficient()}, "optimised"),
    "efficient-rope-standard": ({"encoder": Efficient(), "position": Rope()}, "standard"),
    "optimised-standard": ({"encoder": Optimised()}, "standard"),
    "one-head-efficient": ({"num_heads": 1}, "efficient"),
    "one-head-optimised-rope": ({"num_heads": 1, "position": Rope()}, "optimised"),
    "one-head-alibi": ({"num_heads": 1, "position": Alibi()}, "efficient"),
    "one-head-no-bias": ({"num_heads": 1, "bias": False}, "efficient"),
    "more-heads": ({"num_kv_heads": 2, **ROPE}, "gqa:4"),
    "normalised-standard": ({"encoder": Efficient(), **NORMED}, "standard"),
    "normalised-more-heads": ({"num_kv_heads": 2, "position": Rope(), **NORMED}, "gqa:4"),
    "super": ({"encoder": Efficient(), "mixing": Alignment(12)}, "standard"),
    "latent-of-all": ({}, "latent:16"),
    "latent-wider": ({"bias": False}, "latent:19"),
    "latent-side-by-side": ({"num_kv_heads": 1}, "latent:9"),
    "input": ({"num_kv_heads": 2, "head_dim": 6}, "input"),
    "latent-standard": ({"num_kv_heads": 1, "head_dim": 7, "scale": 0.2}, "latent:14,standard"),
}


@pytest.mark.parametrize("case", CASES)
def test_exact_conversions(case):
    fields, words = CASES[case]
    layer = layer_of(**fields)
    found = convert(layer, words)
    (one,) = found.certificate.layers
    assert found.certificate.kind == "exact"
    assert (one.exact, one.predicted, one.chosen) == (True, None, "")
    assert 0 <= one.difference < 1e-12
    for batch in inputs(batches=1):
        assert_close(found.model(batch), layer(batch))
    assert found.model.spec != layer.spec
    assert not found.model.training


def test_a_round_trip_ends_where_it_began():
    layer = layer_of(encoder=Efficient(), bias=False)
    wide = convert(layer, "standard").model
    back = convert(wide, "efficient")
    assert back.certificate.exact
    assert_close(back.model.q_proj.weight, layer.q_proj.weight)
    assert_close(back.model.o_proj.weight, layer.o_proj.weight)
    turning = convert(layer_of(encoder=Efficient(), position=Rope()), "standard").model
    assert convert(turning, "efficient").certificate.exact


def test_equal_heads_of_a_normalised_layer_are_one():
    layer = layer_of(num_kv_heads=2, **NORMED)
    back = convert(convert(layer, "gqa:4").model, "gqa:2")
    assert back.certificate.exact
    assert_close(back.model.k_proj.weight, layer.k_proj.weight)
    assert torch.equal(back.model.k_norm.weight, layer.k_norm.weight)


def test_columns_of_a_normalised_layer_stay_columns_and_one_head_does_not_become_some():
    layer = layer_of(encoder=Efficient(), bias=False, **NORMED)
    back = convert(convert(layer, "standard").model, "efficient")
    assert back.certificate.exact
    assert_close(back.model.q_proj.weight, layer.q_proj.weight)
    one = layer_of(num_heads=1, **NORMED)
    with pytest.raises(ConfigError, match="cannot become efficient exactly and would have to be"):
        convert(one, "efficient")
    assert convert(one, "optimised").certificate.exact


def test_windows_of_a_normalised_layer_change_no_map():
    layer = layer_of(**NORMED)
    found = convert(layer, "window:3+sinks:1", naive=True).model
    assert all(torch.equal(t, layer.state_dict()[n]) for n, t in found.state_dict().items())


def test_equal_heads_are_one():
    layer = layer_of(num_kv_heads=2)
    wide = convert(layer, "gqa:4").model
    back = convert(wide, "gqa:2")
    assert back.certificate.exact
    assert_close(back.model.k_proj.weight, layer.k_proj.weight)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "mqa"),
        ({}, "efficient"),
        ({}, "optimised"),
        ({}, "latent:15"),
        ({"num_heads": 1, "position": Rope()}, "efficient"),
        ({"encoder": Efficient(), "num_kv_heads": 2}, "efficient:1"),
        ({"num_kv_heads": 2, "num_heads": 6, "head_dim": 2}, "gqa:3"),
        ({"num_heads": 1, "head_dim": 20}, "keep,latent:12"),
        ({"num_heads": 1, "mixing": Alignment(12)}, "efficient"),
        ({"num_kv_heads": 1, "mixing": Alignment(12)}, "latent:8"),
    ],
)
def test_other_conversions_are_not_claimed_to_be_exact(fields, words):
    with pytest.raises(ConfigError, match="cannot become .* exactly and would have to be fitted"):
        convert(layer_of(**fields), words)


def test_a_difference_above_rounding_is_no_proof(monkeypatch):
    monkeypatch.setattr("suffice.convert.exact.ROUNDING", 0.0)
    with pytest.raises(ConfigError, match="the layer cannot become efficient exactly"):
        convert(layer_of(num_heads=1), "efficient")


def test_all_decoder_layers_read_one_cache_of_the_source():
    sizes = {"source_vocabulary_size": 11, "target_vocabulary_size": 13}
    config = TranslatorConfig(length=9, d_model=16, mlp_width=8, **sizes)
    full, causal = preset("standard", 16, 4), preset("standard", 16, 4, causal=True)
    model = drawn(config.build(full, causal, full), seed=2).eval()
    found = convert(model, {"decoder.0.cross": "input", "decoder.1.cross": "input"})
    source, target = torch.randint(11, (2, 9)), torch.randint(13, (2, 5))
    with torch.no_grad():
        assert_close(found.model(source, target), model(source, target))
    assert {spec.encoder for spec in found.model.cross_specs} == {Efficient()}
    held = [made.state(made.encode(source)) for made in (model, found.model)]
    assert held[1].sources.nbytes * 4 == held[0].sources.nbytes
    batches = [(source, target)]
    with pytest.raises(ConfigError, match="decoder.0.cross attends to another sequence"):
        convert(Pairs(model), {"model.decoder.0.cross": "mqa"}, calibration=batches)


class Pairs(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pair):
        return self.model(*pair)


def test_widths_of_a_memory_are_kept():
    layer = layer_of(num_heads=1, d_source=16)
    assert difference(layer, read(layer), layer.spec) < 1e-12
    narrow = Attention(replace(preset("standard", 16, 4), d_source=6)).eval()
    found = convert(narrow, "input")
    assert found.certificate.exact
    assert found.model.spec.head_dim == 6


def test_a_layer_keeps_what_is_not_converted():
    layer = layer_of(encoder=Efficient(), mixing=Alignment(12))
    again = build(read(layer), layer.spec, like=layer)
    for name, tensor in layer.state_dict().items():
        assert_close(again.state_dict()[name], tensor, "exact")


def test_other_kernels_and_unusable_weights_are_refused():
    with pytest.raises(ConfigError, match="Elu"):
        convert(layer_of(kernel=Elu()), "mqa")
    with pytest.raises(ConfigError, match="Infini"):
        convert(drawn(Attention(preset("infini", 16, 4, segment=4)), seed=0), "mqa")
    layer = layer_of()
    layer.q_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="the layer: weights hold NaN or infinity"):
        convert(layer, "mqa")
    packed = layer_of(d_model=32)
    quantise(packed, 8)
    assert isinstance(packed.q_proj, PackedLinear)
    with pytest.raises(ConfigError, match="packed"):
        convert(packed, "mqa")
