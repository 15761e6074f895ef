"""Maps of every layer while somebody watches, and nothing else changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import Attention, AttentionSpec, preset
from suffice.errors import ConfigError, StateError
from suffice.layers import watched
from suffice.mixing import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    LowRank,
    ToeplitzAlignment,
)
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.patterns import Causal
from suffice.presets import PRESETS, takes_length
from suffice.testing import assert_close, bits, documents, drawn, normal

D, HEADS, LENGTH = 8, 2, 7
MIXINGS = (
    Alignment(LENGTH, bias=False),
    Alignment(LENGTH + 2, bias=False, per_head=True),
    BandedAlignment(LENGTH, 2, bias=False),
    ToeplitzAlignment(3, bias=False),
    BlockAlignment(3, bias=False),
    LowRank(LENGTH, 3),
    LowRank(LENGTH, 3, shared=False, per_head=True),
)
X = normal(2, LENGTH, D, seed=1)


def layer_of(**changes) -> Attention:
    spec = AttentionSpec(**{"d_model": D, "num_heads": HEADS, **changes})
    return drawn(Attention(spec, dtype=torch.float64), seed=2)


def outputs(layer, effective, source):
    """What a layer gives if each query takes of the values what the map says."""
    _, v = layer.keys_and_values(source)
    v = v.repeat_interleave(effective.shape[1] // v.shape[1], dim=1)
    return layer.spec.combine.output(layer, effective @ v, X, ())


@pytest.mark.parametrize("name", PRESETS)
def test_every_mechanism_has_maps_whose_rows_sum_to_one(name):
    options = {"length": LENGTH} if takes_length(name) else {}
    layer = Attention(preset(name, D, HEADS, **options), dtype=torch.float64).eval()
    with watched(layer) as maps:
        y = layer(X)
    (map_of_layer,) = maps
    assert_close(y, layer(X), "exact")
    heads = layer.spec.query_heads
    assert map_of_layer.weights.shape[:3] == (2, heads, LENGTH)
    assert map_of_layer.effective.shape == (2, heads, LENGTH, LENGTH)
    if layer.spec.lane != "recurrence":  # whose weights are no shares
        assert_close(map_of_layer.weights.sum(-1), torch.ones(2, heads, LENGTH).double())
    if layer.spec.pattern.causal:
        assert not map_of_layer.effective.triu(1).any()


@pytest.mark.parametrize("mixing", MIXINGS, ids=repr)
def test_the_effective_map_is_what_is_taken_of_each_value(mixing):
    layer = layer_of(mixing=mixing, num_kv_heads=1)
    valid = bits(2, LENGTH, seed=3)
    for given in ({}, {"valid": valid}):
        with watched(layer) as maps:
            y = layer(X, **given)
        (map_of_layer,) = maps
        assert map_of_layer.effective is not map_of_layer.weights
        want = y if not given else y.masked_fill(~valid[..., None], 0.0)
        got = outputs(layer, map_of_layer.effective, X)
        got = got if not given else got.masked_fill(~valid[..., None], 0.0)
        assert_close(got, want)


def test_the_effective_map_of_super_is_its_weights_times_w_a():
    layer = layer_of(mixing=Alignment(LENGTH), pattern=Causal())
    with watched(layer) as maps:
        layer(X)
    want = maps[0].weights @ layer.mixing.weight[0].tril()
    assert_close(maps[0].effective, want.detach())
    assert not maps[0].effective.requires_grad


def test_maps_respect_documents_and_padding():
    layer, numbers = layer_of(mixing=Alignment(LENGTH)), documents(2, LENGTH)
    with watched(layer) as maps:
        layer(X, segments=numbers)
        layer(X, None, segments=numbers)
    apart = numbers[:, None, :, None] != numbers[:, None, None, :]
    first, again = maps
    assert not first.effective[apart.expand_as(first.effective)].any()
    assert_close(first.effective, again.effective, "exact")
    assert_close(first.weights, layer.weights(X, segments=numbers).detach(), "exact")


def test_nothing_mixed_is_one_tensor():
    with watched(layer := layer_of()) as maps:
        layer(X)
    assert maps[0].effective is maps[0].weights


def test_maps_of_a_model_in_half_precision():
    layer = Attention(preset("super_attention", D, HEADS, length=LENGTH)).bfloat16()
    with watched(layer) as maps, torch.autocast("cpu", dtype=torch.bfloat16):
        layer(X.bfloat16())
    along = layer.mixing.weight[0].float()
    want = (maps[0].weights.float() @ along).detach()
    assert maps[0].effective.dtype is torch.bfloat16
    assert_close(maps[0].effective.float(), want.bfloat16().float(), "same_math")


SIZES = {"vocabulary_size": 11, "d_model": D, "mlp_width": 8}


def test_a_model_names_its_layers_in_their_order():
    lm = LMConfig(**SIZES, length=LENGTH, depth=2).build(preset("efficient", D, HEADS, causal=True))
    with watched(lm.eval()) as maps:
        lm(torch.arange(LENGTH)[None])
    assert [map_of_layer.layer for map_of_layer in maps] == [
        "blocks.0.attention",
        "blocks.1.attention",
    ]
    config = ViTConfig(image_size=8, patch_size=4, num_classes=2, d_model=D, depth=1, mlp_width=8)
    vit = config.build(preset("super_attention", D, HEADS, length=4)).eval()
    with watched(vit) as maps:
        vit(torch.zeros(1, 1, 8, 8))
    assert maps[0].effective.shape == (1, HEADS, 4, 4)


def test_maps_of_the_cross_attention_of_a_translator():
    config = TranslatorConfig(
        source_vocabulary_size=11,
        target_vocabulary_size=11,
        length=LENGTH,
        d_model=D,
        encoder_depth=1,
        decoder_depth=1,
        mlp_width=8,
    )
    specs = [preset("standard", D, HEADS, causal=causal) for causal in (False, True, False)]
    model = config.build([specs[0]], [specs[1]], [specs[2]]).eval()
    with watched(model) as maps:
        model(torch.ones(1, 5, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    assert [tuple(map_of_layer.weights.shape[2:]) for map_of_layer in maps] == [
        (5, 5),
        (3, 3),
        (3, 5),
    ]


def test_outside_the_block_a_layer_does_nothing_for_it():
    layer = layer_of()
    with watched(layer) as maps:
        assert layer._forward_hooks
    layer(X)
    assert maps == []
    assert not layer._forward_hooks
    with pytest.raises(ZeroDivisionError), watched(layer):
        raise ZeroDivisionError
    assert not layer._forward_hooks


def test_a_stream_has_no_map_of_its_own():
    layer = layer_of(pattern=Causal())
    with (
        watched(layer),
        pytest.raises(StateError, match="no separate map"),
    ):
        layer(X, state=layer.state())
    with watched(layer) as maps:
        layer(X, state=None)
    assert len(maps) == 1


def test_a_model_without_attention_or_compiled_is_refused():
    with (
        pytest.raises(ConfigError, match="Linear"),
        watched(nn.Linear(2, 2)),
    ):
        pass
    model = nn.Sequential(layer_of())
    model[0].compile(backend="eager")
    for compiled in (model, torch.compile(layer_of(), backend="eager")):
        with (
            pytest.raises(ConfigError, match="compiled"),
            watched(compiled),
        ):
            pass
