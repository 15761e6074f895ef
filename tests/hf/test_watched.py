"""Maps of stock models of transformers: those of its eager functions, in each call."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from suffice.errors import ConfigError
from suffice.hf import accelerate
from suffice.layers import watched
from suffice.testing import assert_close
from tests.hf.acceleration.stock import ATTENDING, model, tokens

HEADS, LENGTH, PAD = 4, 12, 5
ENCODER = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER |= {"intermediate_size": 48, "pad_token_id": 0}
MODERN = {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
ENCODERS = {
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {"local_attention": 4, "global_attn_every_n_layers": 2} | MODERN,
    ),
}
VIT = {"image_size": 8, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2}
VIT |= {"num_attention_heads": 4, "intermediate_size": 48, "num_channels": 1}


def drawn(config, kind):
    torch.manual_seed(0)
    stock = kind(config).eval()
    for parameter in stock.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stock


def encoder(name, **others):
    config, kind, more = ENCODERS[name]
    config = getattr(transformers, config)(**ENCODER | more | others)
    return drawn(config, getattr(transformers, kind))


def stock_model(name):
    return encoder(name) if name in ENCODERS else model(name)


@torch.no_grad()
def maps_of(stock, *args, **kwargs):
    with watched(stock) as maps:
        output = stock(*args, **kwargs)
    return maps, output


@torch.no_grad()
def eager_maps(stock, *args, **kwargs):
    stock.set_attn_implementation("eager")
    return stock(*args, output_attentions=True, **kwargs).attentions


@pytest.mark.parametrize("name", [*(n for n in ATTENDING if n != "qwen3_5"), *ENCODERS])
def test_maps_are_those_that_transformers_returns(name):
    stock, ids = stock_model(name), tokens(2, LENGTH)
    before = stock.config._attn_implementation
    maps, output = maps_of(stock, ids)
    assert stock.config._attn_implementation == before
    assert_close(output.logits, stock(ids).logits.detach())
    for layer, weights in zip(maps, eager_maps(stock, ids), strict=True):
        assert layer.weights.shape == (2, HEADS, LENGTH, LENGTH)
        assert (layer.weights - weights).abs().max() <= 1e-6
        if name != "gpt_oss":  # whose sinks take a share
            assert_close(layer.weights.sum(-1), torch.ones(2, HEADS, LENGTH))


def test_maps_of_a_vit_have_the_class_token_first():
    stock = drawn(transformers.ViTConfig(**VIT), transformers.ViTForImageClassification)
    image = torch.randn(1, 1, 8, 8)
    maps, _ = maps_of(stock, image)
    for layer, weights in zip(maps, eager_maps(stock, image), strict=True):
        assert layer.weights.shape == (1, HEADS, 5, 5)
        assert (layer.weights - weights).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_padding_and_the_future_have_no_weight(name):
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :PAD] = 0
    maps, _ = maps_of(model(name), tokens(2, LENGTH), attention_mask=mask)
    for layer in maps:
        assert not layer.weights.triu(1).any()
        assert not layer.weights[1, :, :, :PAD].any()
        assert not layer.weights[1, :, :PAD].any()
        assert_close(layer.weights[1, :, PAD:].sum(-1), torch.ones(HEADS, LENGTH - PAD))
    windowed = {"llama": 0, "mistral": 2, "gemma2": 1}[name]
    assert sum(not layer.weights.tril(-5).any() for layer in maps) == windowed


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_generated_queries_against_the_cache_are_rows_of_one_pass(name):
    stock, ids = model(name), tokens(1, 4)
    with watched(stock) as steps:
        text = stock.generate(ids, max_new_tokens=7, do_sample=False)
    whole, _ = maps_of(stock, text[:, :-1])
    assert len(steps) == 2 * 7
    for number, layer in enumerate(whole):
        first, *later = steps[number::2]
        assert first.layer == layer.layer
        assert_close(first.weights, layer.weights[:, :, :4, :4])
        for row, step in enumerate(later, start=4):
            keys = step.weights.shape[-1]  # a cache of a window may have dropped earlier ones
            assert_close(step.weights[:, :, 0], layer.weights[:, :, row, row + 1 - keys : row + 1])
            assert not layer.weights[:, :, row, : row + 1 - keys].any()


def test_recurrent_layers_add_no_map():
    maps, _ = maps_of(model("qwen3_5"), tokens(1, LENGTH))
    assert [layer.layer for layer in maps] == ["model.layers.1.self_attn"]
    assert maps_of(model("mamba2"), tokens(1, LENGTH))[0] == []


def test_an_accelerated_model_has_the_same_maps():
    stock, ids = model("llama"), tokens(1, LENGTH)
    maps, _ = maps_of(stock, ids)
    report = accelerate(stock)
    accelerated, _ = maps_of(stock, ids)
    assert stock.config._attn_implementation not in ("sdpa", "eager"), "it was accelerated again"
    for before, after in zip(maps, accelerated, strict=True):
        assert_close(after.weights, before.weights)
    report.undo()


def test_a_failure_restores_the_implementation():
    stock = model("llama")
    with pytest.raises(ZeroDivisionError), watched(stock):
        raise ZeroDivisionError
    assert stock.config._attn_implementation == "sdpa"
    assert len(maps_of(stock, tokens(1, 3))[0]) == 2


def test_dropout_and_watching_twice_are_refused():
    stock = encoder("bert", attention_probs_dropout_prob=0.5).train()
    with pytest.raises(ConfigError, match="eval"), watched(stock):
        stock(tokens(1, LENGTH))
    with watched(stock), pytest.raises(ConfigError, match="watched"), watched(stock):
        pass
