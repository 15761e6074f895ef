"""The calculator's numbers: published figures, the library's own specs and states, refusals."""

from __future__ import annotations

import pytest
import torch

from suffice.choose.fits.calculator import count, kinds_of, layer_bytes, spec_of
from suffice.choose.fits.calculator import longest as longest_text
from suffice.errors import ConfigError
from suffice.layers import MLP, Block, SwiGLU
from suffice.memory import Static
from suffice.models import LMConfig
from suffice.utils.timing import peak_bytes
from suffice_studio.bundle import CURVE_LENGTHS
from tests.choose.fits.decoder import CALCULATOR, EMPTY, PUBLISHED, layers_of

SMALL = {"d_model": 64, "num_heads": 4, "layers": 3}


def small(**sizes):
    return SMALL | sizes


LATENT = {"projections": "MLA", "rank": 48, "rotary_dim": 16, "d_model": 128, "num_heads": 4}
ROUTED = {"experts": 8, "expert_width": 24, "active_experts": 2}
COMPOSITIONS = (
    {"d_model": 96, "num_heads": 4, "layers": 5, "projections": "Efficient", "state_bits": 32},
    {"d_model": 96, "num_heads": 4, "layers": 5, "projections": "Optimised", "bias": True},
    {"d_model": 96, "num_heads": 4, "num_kv_heads": 2, "projections": "Efficient", "state_bits": 8},
    {"d_model": 128, "num_heads": 2, "head_dim": 100, "projections": "Latent", "state_bits": 4},
    {"d_model": 128, "num_heads": 8, "num_kv_heads": 2, "state_bits": 4, "batch": 3},
    {"d_model": 128, "num_heads": 8, "kernel": "Elu", "full_every": 4, "layers": 9, "norms": 0},
    {"d_model": 64, "num_heads": 2, "mixing": "Alignment", "mixing_size": 4096, "chunk": 0},
    {"d_model": 64, "num_heads": 2, "mixing": "ToeplitzAlignment", "mixing_size": 9, "window": 33},
    small(kernel="Elu", mixing="ToeplitzAlignment", mixing_size=4),
    small(kernel="Elu", state_bits=4),
    small(window=300, sinks=4, state_bits=8, full_every=3),
    small(mixing="ToeplitzAlignment", mixing_size=90, window=33),
    small(mixing="ToeplitzAlignment", mixing_size=9, state_bits=4),
    {**LATENT, "rotary": True, "state_bits": 8},
    {**LATENT, "value_dim": 20, "query_rank": 33, "bias": True, "state_bits": 4, "head_dim": 24},
    {**LATENT, "window": 70, "full_every": 3, "layers": 7},
    small(**ROUTED, mlp_width=96, mlp_bias=True, shared_experts=1, dense_layers=2),
    small(layers=5, full_count=2, window=9, gate=True, bias=True),
    small(
        layers=8, full_every=4, gate=True, recurrent_numbers=777, recurrent_parameters=999,
        state_bits=8, convolution_numbers=99,
    ),
    small(layers=9, full_every=3, window=200, shared_layers=4, full_kv_heads=1, full_head_dim=48),
    small(layers=9, full_every=3, window=900, chunked=True, shared_layers=3, one_kv_map=True),
    small(scale_group=32, weight_bits=4, attention_bits=8.0, embedding_bits=16.0, vocabulary=77),
    small(**ROUTED, extra_parameters=11, extra_embeddings=13, active_embedding=False, scale_group=7,
          expert_bits=4.25, weight_bits=8),
    {**LATENT, "index_dim": 24, "index_layers": 2, "layers": 5},
    {**LATENT, "layers": 8, "full_every": 4, "recurrent_numbers": 999, "recurrent_parameters": 1},
)  # fmt: skip


@pytest.fixture
def counted(page, static):
    """A function that returns what the page counts of models."""
    page.goto(static.as_uri())

    def answers(*models, length=1, memory=None):
        request = {"models": list(models), "length": length, "memory": memory}
        return page.evaluate("(request) => window.studio.calculate(request)", request)

    return answers


@pytest.mark.parametrize("length", [1, 130, 4096, 100_000])
def test_the_page_and_python_count_the_same(counted, length, models):
    models = [EMPTY | sizes for sizes in (*models.values(), *COMPOSITIONS)]
    for model, answer in zip(models, counted(*models, length=length), strict=True):
        if model["mixing"] == "Alignment" and length > model["mixing_size"]:
            assert f"{length:,}" in answer["error"]
            with pytest.raises(ConfigError, match="Alignment"):
                count(model, length)
            continue
        ours = count(model, length)
        assert {"suffice": answer["state"], **answer["engines"]} == ours.state, model
        assert answer["weights"] == ours.weights, model
        assert answer["weight_bytes"] == ours.weight_bytes, model
        assert answer["activations"] == ours.activations, model
        assert answer["total"] == ours.total()
        kinds = [kind for kind in kinds_of(model) if kind.cached]
        assert [one["count"] for one in answer["layers"]] == [kind.cached for kind in kinds]
        assert [one["state"] for one in answer["layers"]] == [
            layer_bytes(model, kind.full, length) for kind in kinds
        ]


def test_one_more_token_adds_what_the_states_differ_by(counted, models):
    models = [EMPTY | sizes for sizes in (*models.values(), *COMPOSITIONS)]
    far = 1 << 20
    for model, answer in zip(models, counted(*models, length=100_000), strict=True):
        grown = [
            (layer_bytes(model, kind.full, far + 64) - layer_bytes(model, kind.full, far)) / 64
            if not model["window"] or kind.full
            else 0.0
            for kind in kinds_of(model)
            if model["mixing"] != "Alignment"
        ]
        if grown:
            assert [one["per_token"] for one in answer["layers"]] == grown, model


def test_published_models_have_the_published_parameters(counted, models):
    for name, answer in zip(models, counted(*models.values()), strict=True):
        row = PUBLISHED[name]
        of_a_class = "transformers' " in row["source"]  # with trifles such as gates of experts
        error = 1e-5 * row["parameters"] if of_a_class else 0
        total = answer["weights"]["total"]
        assert total == pytest.approx(row["parameters"], abs=error, rel=0), name
        assert of_a_class or "arXiv" in row["source"] or "Radford" in row["source"]
        assert models[name].keys() == EMPTY.keys()


PER_TOKEN = {
    "Llama 2 7B": 512 * 1024,
    "Llama 2 70B": 320 * 1024,
    "Llama 3 8B": 128 * 1024,
    "TinyLlama 1.1B": 22 * 1024,
    "Gemma 2B": 18 * 1024,
    "Gemma 7B": 448 * 1024,
    "GPT-2": 72 * 1024,
}


def test_published_models_cache_the_published_bytes_per_token(counted, models):
    answers = counted(*(models[name] for name in PER_TOKEN))
    assert [one["per_token"] for one in answers] == list(PER_TOKEN.values())


def test_experts_in_four_bits_weigh_what_their_checkpoint_does(counted, models):
    """Arxiv 2508.10925, table 1."""
    for name, gib, active in (("gpt-oss-20b", 12.8, 3.61), ("gpt-oss-120b", 60.8, 5.13)):
        packed, half = counted(models[name], models[name] | {"expert_bits": 16.0})
        assert packed["weight_bytes"] / 2**30 == pytest.approx(gib, abs=0.05)
        assert half["weight_bytes"] == 2 * packed["weights"]["total"]
        parts = packed["weights"]
        assert parts["active"] == parts["total"] - parts["resting"] - parts["embedding"]
        assert round(parts["active"] / 1e9, 2) == active
        assert packed["weight_bytes"] > 12 * 2**30


def test_figures_of_the_article_that_differ_from_its_formula_are_marked(counted, page):
    [answer] = counted(CALCULATOR["article"]["model"], length=2048)
    assert (answer["state"], answer["layers"][0]["state"]) == (512 * 2**20, 16 * 2**20)
    assert answer["layers"][0]["per_token"] == 8192
    claims = {one["where"]: one for one in page.evaluate("() => window.studio.articleClaims()")}
    drawn = [claim for where, claim in claims.items() if "visualiser" in where]
    assert [claim["computed"] / 2**20 for claim in drawn] == [16, 0.5, 2, 4]
    assert all(claim["agrees"] for claim in drawn)
    per_token = claims["KV cache calculator, per token"]
    assert (per_token["computed"], per_token["agrees"]) == (32 * 8192, False)
    code = claims["get_cache_size of MultiHeadAttention(2048, 32), 2048 tokens"]
    assert (code["computed"], code["agrees"]) == (2 * 32 * 2048 * 64 * 2, False)
    assert claims["Llama-7B, 32 layers"]["agrees"]
    full = [claim for where, claim in claims.items() if "Mistral-7B, full" in where]
    assert [claim["computed"] / full[0]["computed"] for claim in full] == [1, 2, 4]  # not 1, 4, 16
    assert not any(claim["agrees"] for claim in full)
    assert all(claim["note"] for claim in claims.values() if not claim["agrees"])


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
def test_weights_are_those_of_the_model(counted, model):
    model = EMPTY | model
    config = LMConfig(
        vocabulary_size=model["vocabulary"],
        length=16,
        d_model=model["d_model"],
        depth=model["layers"],
        mlp_width=model["mlp_width"],
        activation="swiglu" if model["gated"] else "gelu",
        norm="layer" if model["norm_bias"] else "rms",
        positions="learned" if model["positions"] else "none",
        bias=model["mlp_bias"] or model["norm_bias"],
        tied=model["tied"],
    )
    # one option there, two here
    model |= {"norm_bias": config.bias and config.norm == "layer", "mlp_bias": config.bias}
    built = config.build([spec_of(model, full) for full in layers_of(model)], device="meta")
    [answer] = counted(model)
    assert answer["weights"]["total"] == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    "sizes", [{}, {"num_kv_heads": 1, "batch": 3}, {"projections": "Latent", "num_kv_heads": 1}]
)
def test_a_state_is_that_of_a_model_that_has_read_a_text(counted, sizes):
    model, tokens = EMPTY | small(state_bits=32, **sizes), 40
    config = LMConfig(
        vocabulary_size=9, length=tokens, d_model=64, depth=model["layers"], mlp_width=8
    )
    built = config.build(spec_of(model, full=False)).eval()
    state = built.state(Static(tokens))
    with torch.no_grad():
        built(torch.zeros(model["batch"], tokens, dtype=torch.long), state=state)
    assert counted(model, length=tokens)[0]["state"] == state.nbytes


@pytest.mark.parametrize("gated", [True, False])
def test_activations_match_the_measured_peak(counted, gated):
    model = small(mlp_width=256, gated=gated, weight_bits=32, chunk=0)
    mlp = SwiGLU(64, 256) if gated else MLP(64, 256)
    block = Block(spec_of(EMPTY | model, full=False), mlp).eval()
    x = torch.zeros(1, 512, 64)
    with torch.no_grad():
        block(x)
        measured = peak_bytes(lambda: block(x)) + x.numel() * 4
    assert counted(model, length=512)[0]["activations"] == pytest.approx(measured, rel=0.25)


def test_longest_fits_and_one_more_token_does_not(counted):
    model, memory = small(mlp_width=96, vocabulary=50), 300_000
    longest = counted(model, memory=memory)[0]["longest"]
    [fits], [over] = counted(model, length=longest), counted(model, length=longest + 1)
    assert fits["total"] <= memory < over["total"]
    assert longest_text(EMPTY | model, memory) == longest
    assert counted(model, memory=1000)[0]["longest"] == 0
    fixed = small(mixing="Alignment", mixing_size=256)
    [answer] = counted(fixed, memory=10**9)
    assert answer["longest"] == 256
    assert [value is None for value in answer["curve"]] == [n > 256 for n in CURVE_LENGTHS]


REFUSED = (
    {"num_heads": 3, "d_model": 64},
    {"num_kv_heads": 3},
    {"layers": 0},
    {"layers": "3"},
    {"batch": -1},
    {"window": 1 << 40},
    {"sinks": 4},
    {"window": 8, "kernel": "Elu"},
    {"window": 8, "mixing": "Alignment", "mixing_size": 9999},
    {"mixing": "Alignment"},
    {"mixing_size": 3},
    {"projections": "Efficient", "head_dim": 100},
    {"mixing": "Alignment", "mixing_size": 8},
    {"rank": 8},
    {"projections": "MLA", "rank": 8},
    {**LATENT, "kernel": "Elu"},
    {**LATENT, "num_kv_heads": 2},
    {**LATENT, "rotary": True, "rotary_dim": 3},
    {"experts": 4},
    {"shared_experts": 1},
    {"full_count": 33},
    {"full_count": 3, "full_every": 4},
    {"recurrent_parameters": 3},
    {"recurrent_numbers": 3, "recurrent_parameters": 3, "kernel": "Elu"},
    {"experts": 4, "expert_width": 8, "active_experts": 5},
)


def test_wrong_sizes_are_refused(counted):
    for sizes, answer in zip(REFUSED, counted(*REFUSED, length=64), strict=True):
        assert set(answer) == {"error"}, sizes
        named = [str(sizes.get("projections")), *sizes]
        assert any(name in answer["error"] for name in named), answer["error"]


@pytest.mark.parametrize("length", [0, None, 1.5, 1 << 31])
def test_wrong_lengths_are_refused(counted, length):
    assert "length=" in counted({}, length=length)[0]["error"]
