"""The calculator's numbers: published figures, the library's own states, refusals."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.errors import ConfigError
from suffice.kernels.base import columns
from suffice.layers import MLP, Block, SwiGLU
from suffice.measure.timing import peak_bytes
from suffice.memory import Quantised, Rolling, Static
from suffice.models import LMConfig
from suffice.studio.calculator import (
    LENGTHS,
    DecoderSizes,
    activation_bytes,
    calculate,
    count_weights,
)
from suffice.studio.published import ARTICLE, ARTICLE_CLAIMS, PUBLISHED_MODELS

SMALL = {"d_model": 64, "num_heads": 4, "layers": 3}


def small(**given):
    return DecoderSizes(**SMALL | given)


@pytest.mark.parametrize("known", PUBLISHED_MODELS, ids=lambda known: known.model.name)
def test_published_models_have_the_published_parameters(known):
    counted = "transformers' " in known.source  # with gates of shared experts and such trifles
    error = 1e-5 * known.parameters if counted else 0
    assert count_weights(known.model).total == pytest.approx(known.parameters, abs=error, rel=0)
    assert counted or "arXiv" in known.source or "Radford" in known.source


PER_TOKEN = {
    "Llama 2 7B": 512 * 1024,
    "Llama 2 70B": 320 * 1024,
    "Llama 3 8B": 128 * 1024,
    "TinyLlama 1.1B": 22 * 1024,
    "Gemma 2B": 18 * 1024,
    "Gemma 7B": 448 * 1024,
    "GPT-2": 72 * 1024,
}


@pytest.mark.parametrize("name", PER_TOKEN)
def test_published_models_cache_the_published_bytes_per_token(name):
    model = next(known.model for known in PUBLISHED_MODELS if known.model.name == name)
    assert calculate(model, 1).per_token == PER_TOKEN[name]


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_experts_in_four_bits_weigh_what_their_checkpoint_does(name, gib):
    """Arxiv 2508.10925, table 1."""
    model = next(known.model for known in PUBLISHED_MODELS if known.model.name == name)
    assert calculate(model, 1).weight_bytes / 2**30 == pytest.approx(gib, abs=0.05)
    whole = DecoderSizes.from_json(model.to_json() | {"expert_bits": 16.0})
    assert calculate(whole, 1).weight_bytes == 2 * count_weights(model).total


def test_recurrent_layers_keep_the_same_at_every_length():
    model = small(layers=4, full_every=4, recurrent_numbers=500, recurrent_parameters=70)
    short, long = calculate(model, 8), calculate(model, 800)
    assert [(one.kind, one.count, one.state) for one in short.layers] == [
        ("sums", 3, 2000),
        ("full", 1, 2 * 64 * 8 * 2),
    ]
    assert long.state - short.state == 2 * 64 * 792 * 2
    by_count = DecoderSizes.from_json(model.to_json() | {"full_every": 0, "full_count": 1})
    assert calculate(by_count, 800).state == long.state
    assert count_weights(by_count) == count_weights(model)


def test_a_rolling_buffer_saves_what_its_paper_says():
    """Arxiv 2310.06825, section 2: 8 times less at 32k tokens."""
    mistral = next(known.model for known in PUBLISHED_MODELS if known.model.name == "Mistral 7B")
    full = DecoderSizes.from_json(mistral.to_json() | {"window": 0})
    assert calculate(full, 32_768).state == 8 * calculate(mistral, 32_768).state
    assert calculate(mistral, 10**6).per_token == 0.0
    assert calculate(mistral, 10**6, 24 * 10**9).longest is None


def test_five_windows_to_one_full_layer():
    gemma = next(known.model for known in PUBLISHED_MODELS if known.model.name == "Gemma 3 1B")
    answer = calculate(gemma, 32_768)
    assert [(one.kind, one.count, one.kept) for one in answer.layers] == [
        ("window", 22, 512),
        ("full", 4, 32_768),
    ]


def test_the_article_is_reproduced():
    answer = calculate(ARTICLE, 2048)
    assert (answer.state, answer.layers[0].state) == (512 * 2**20, 16 * 2**20)
    assert answer.layers[0].per_token == 8192.0
    rows = {claim.where: claim for claim in ARTICLE_CLAIMS if "visualiser" in claim.where}
    sizes = [claim.computed / 2**20 for claim in rows.values()]
    assert sizes == [16.0, 0.5, 2.0, 4.0]
    assert all(claim.agrees for claim in rows.values())


def test_figures_that_differ_from_the_formula_are_marked():
    claims = {claim.where: claim for claim in ARTICLE_CLAIMS}
    per_token = claims["KV cache calculator, per token"]
    assert not per_token.agrees
    assert per_token.computed == 32 * 8192
    code = claims["get_cache_size of MultiHeadAttention(2048, 32), 2048 tokens"]
    assert (code.computed, code.agrees) == (2 * 32 * 2048 * 64 * 2, False)
    assert claims["Llama-7B, 32 layers"].agrees
    full = [claim for where, claim in claims.items() if "Mistral-7B, full" in where]
    assert [claim.computed / full[0].computed for claim in full] == [1, 2, 4]  # and not 1, 4, 16
    assert not any(claim.agrees for claim in full)
    assert all(claim.note for claim in claims.values() if not claim.agrees)
    assert json.dumps([claim.to_json() for claim in claims.values()])


@pytest.mark.parametrize(
    "model",
    [
        small(mlp_width=96, vocabulary=50),
        small(mlp_width=96, vocabulary=50, tied=True, bias=True, mlp_bias=True, gated=False),
        small(mlp_width=96, vocabulary=50, projections="Efficient", full_every=2, bias=True),
        small(mlp_width=96, vocabulary=50, mixing="Alignment", mixing_size=16, norm_bias=True),
        small(mlp_width=96, vocabulary=50, mixing="ToeplitzAlignment", mixing_size=5, positions=16),
    ],
)
def test_weights_are_those_of_the_model(model):
    config = LMConfig(
        vocabulary_size=model.vocabulary,
        length=16,
        d_model=model.d_model,
        depth=model.layers,
        mlp_width=model.mlp_width,
        activation="swiglu" if model.gated else "gelu",
        norm="layer" if model.norm_bias else "rms",
        positions="learned" if model.positions else "none",
        bias=model.mlp_bias or model.norm_bias,
        tied=model.tied,
    )
    if model.norm_bias != config.bias:  # one option there, two here
        model = DecoderSizes.from_json(model.to_json() | {"norm_bias": config.norm == "layer"})
    if config.bias and not model.mlp_bias:
        model = DecoderSizes.from_json(model.to_json() | {"mlp_bias": True})
    built = config.build(model.specs(), device="meta")
    assert count_weights(model).total == sum(p.numel() for p in built.parameters())


def streamed_bytes(model, tokens):
    """Return the bytes of a state of these layers that has read so many tokens."""
    config = LMConfig(
        vocabulary_size=9, length=tokens, d_model=model.d_model, depth=model.layers, mlp_width=8
    )
    built = config.build(model.specs()).eval()
    state = built.state(Static(tokens))
    with torch.no_grad():
        built(torch.zeros(model.batch, tokens, dtype=torch.long), state=state)
    return state.nbytes


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_kv_heads": 1, "batch": 3},
        {"projections": "Efficient"},
        {"projections": "Optimised"},
        {"projections": "Latent", "num_kv_heads": 1},
    ],
)
def test_state_equals_the_layer_state(given):
    model = small(state_bits=32, **given)
    assert calculate(model, 40).state == streamed_bytes(model, 40)


def test_sums_equal_the_layer_state():
    model = small(state_bits=32, kernel="Elu")
    answer = calculate(model, 40)
    assert [(one.kind, one.per_token) for one in answer.layers] == [("sums", 0.0)]
    heads = 3 * 4 * 16  # layers, heads, features
    assert answer.state == heads * (16 + 1) * 4
    assert streamed_bytes(model, 40) == heads * columns(16) * 4  # padded to products' width


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [16, 100])
def test_quantised_state_equals_the_layer_state(bits, width):
    model, tokens = small(state_bits=bits, num_kv_heads=2, head_dim=width), 64 * 4 + 10
    store = Quantised(bits=bits).build()
    part = torch.randn(1, 2, tokens, width, dtype=torch.float16)
    store.append(part, part)
    encoded = sum(x.numel() * x.element_size() for x in store.blocks.latest(3))
    tail = 2 * 2 * (tokens - 3 * 64) * width * 2
    assert calculate(model, tokens).layers[0].state == encoded + tail


def test_sums_are_exact_in_few_bits():
    plain, quantised = (calculate(small(kernel="Elu", state_bits=bits), 300) for bits in (16, 4))
    assert plain.layers == quantised.layers


def test_a_quantised_cache_fits_at_every_length_before_the_longest():
    model = small(state_bits=8, layers=1, chunk=1)
    answer = calculate(model, 1, 100_000)
    totals = [calculate(model, n).total for n in range(1, answer.longest + 65)]
    assert max(totals[: answer.longest]) <= 100_000 < totals[answer.longest]


def test_windows_and_sinks_bound_the_state():
    model = small(window=10, sinks=2, full_every=3)
    assert [one.kept for one in calculate(model, 100).layers] == [12, 100]
    assert calculate(model, 11).layers[0].kept == 11
    rolling = Rolling(10, sinks=2)
    assert calculate(model, 100).layers[0].kept == rolling.window + rolling.sinks


@pytest.mark.parametrize("gated", [True, False])
def test_activations_match_the_measured_peak(gated):
    model = small(mlp_width=256, gated=gated, weight_bits=32, chunk=0)
    mlp = SwiGLU(64, 256) if gated else MLP(64, 256)
    block = Block(model.spec(), mlp).eval()
    x = torch.zeros(1, 512, 64)
    with torch.no_grad():
        block(x)
        measured = peak_bytes(lambda: block(x)) + x.numel() * 4
    assert activation_bytes(model, 512) == pytest.approx(measured, rel=0.25)


def test_a_chunk_bounds_the_activations():
    one, two = small(chunk=64), small(chunk=0)
    assert (
        activation_bytes(one, 512) == activation_bytes(one, 64) == activation_bytes(two, 512) // 8
    )


def test_longest_fits_and_one_more_token_does_not():
    model = small(mlp_width=96, vocabulary=50)
    memory = 300_000
    longest = calculate(model, 1, memory).longest
    assert calculate(model, longest).total <= memory < calculate(model, longest + 1).total
    assert calculate(model, 1, 1000).longest == 0
    fixed = small(mixing="Alignment", mixing_size=64)
    assert calculate(fixed, 1, 10**9).longest == 64


def test_curve_ends_at_the_longest_input():
    curve = calculate(small(mixing="Alignment", mixing_size=256), 8).curve
    assert [value is None for value in curve] == [length > 256 for length in LENGTHS]


def test_sizes_round_trip():
    model = small(window=4, sinks=1)
    assert DecoderSizes.from_json(json.loads(json.dumps(model.to_json()))) == model


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"projections": "Eficient"}, "unknown projections 'Eficient'; did you mean 'Efficient'"),
        ({"state_bits": 3}, "state_bits=3: give 32, 16, 8 or 4"),
        ({"layers": 0}, "layers=0: give 1 to"),
        ({"window": 1 << 40}, "window=1099511627776: give 0 to"),
        ({"mixing": "Alignment"}, "give a size of at least 1 to Alignment"),
        ({"sinks": 1}, "sinks=1 without a window"),
        ({"window": 4, "mixing": "Alignment", "mixing_size": 9}, "reads all earlier values"),
        ({"num_heads": 3}, "num_heads=3 does not divide d_model=64"),
        ({"layers": "3"}, "layers='3' is not a whole number"),
        ({"tied": 1}, "tied=1 is not True or False"),
        ({"kernel": "Elu", "window": 3}, "Elu sums over all keys"),
        ({"full_count": 4}, "full_count=4"),
        ({"full_count": 1, "full_every": 2}, "full_every=2"),
        ({"recurrent_numbers": 8}, "recurrent_parameters"),
        ({"recurrent_numbers": 8, "recurrent_parameters": 8, "window": 3}, "recurrent_numbers"),
        ({"expert_bits": 3.5}, "expert_bits=3.5"),
    ],
)
def test_wrong_sizes_are_refused(given, named):
    with pytest.raises(ConfigError, match=named):
        DecoderSizes.from_json(SMALL | given)


def test_wrong_data_are_refused():
    with pytest.raises(ConfigError, match="3"):
        DecoderSizes.from_json(3)
    with pytest.raises(ConfigError, match="'window_size'"):
        DecoderSizes.from_json({"window_size": 3})


@pytest.mark.parametrize(
    ("length", "memory", "named"),
    [
        (0, None, "length=0: give a whole number"),
        (True, None, "length=True: give a whole number"),
        (None, None, "length=None: give a whole number"),
        (1, 0, "memory=0: give a whole number"),
        (1 << 31, None, "give at most 1,073,741,824 tokens"),
        (65, None, "Alignment is made for 64 tokens and cannot read 65"),
    ],
)
def test_wrong_lengths_are_refused(length, memory, named):
    with pytest.raises(ConfigError, match=named):
        calculate(small(mixing="Alignment", mixing_size=64), length, memory)
