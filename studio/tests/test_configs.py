"""A pasted config.json is counted as transformers builds it, or refused."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.choose.fits.configs import read_config
from suffice.errors import ConfigError
from suffice.hf.cache import CACHE_NAME
from tests.choose.fits.decoder import EMPTY, PUBLISHED

FULL = ("full_attention", "attention", "indexed_attention")
HYBRID = [*["mamba"] * 5, "attention", *["mamba"] * 2]
CLASSES = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen3": {},
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "llama4_text": {},
    "smollm3": {},
    "granitemoehybrid": {"layer_types": HYBRID, "num_key_value_heads": 8, "intermediate_size": 512},
    "minimax": {},
    "minimax_m2": {},
    "glm4": {},
    "glm4_moe": {"head_dim": 128},
    "gemma2": {},
    "gemma3_text": {},
    "gpt_oss": {},
    "deepseek_v3": {},
    "phi3": {},
    "olmo2": {},
    "qwen2": {},
    "gemma3n_text": {"num_hidden_layers": 15, "num_kv_shared_layers": 5},
    "gemma4_text": {"num_hidden_layers": 12},
    "gemma4_text shared": {
        "num_hidden_layers": 12, "num_kv_shared_layers": 6, "use_double_wide_mlp": True,
    },
    "gemma4_text experts": {
        "num_hidden_layers": 12, "enable_moe_block": True, "num_experts": 16, "top_k_experts": 2,
        "moe_intermediate_size": 1024, "intermediate_size": 3072, "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True, "num_global_key_value_heads": 2,
    },
    "deepseek_v32": {},
    "glm_moe_dsa": {},
    "glm4_moe_lite": {},
    "kimi_linear": {},
    "llama4_text every second": {"interleave_moe_layer_step": 2},
    "mamba2": {},
    "bamba": {"attn_layer_indices": [3, 7]},
}  # fmt: skip


@pytest.fixture
def studio_page(page, static):
    page.goto(static.as_uri())
    return page


def config_of(name, **sizes):
    """The configuration of a family; words behind its name say which case it is."""
    transformers = pytest.importorskip("transformers")
    return transformers.CONFIG_MAPPING[name.split()[0]](**sizes)


def read(page, config):
    """What the page reads, which is what Python reads."""
    model = page.evaluate("(text) => studio.modelOfConfig(text)", json.dumps(config))
    assert model == read_config(config)[0]
    return model


def count(page, model):
    request = {"models": [model], "length": 1 << 17, "memory": None}
    return page.evaluate("(request) => window.studio.calculate(request)", request)[0]


@pytest.mark.parametrize("name", CLASSES)
def test_a_config_is_counted_as_transformers_builds_it(studio_page, name):
    from transformers import AutoModelForCausalLM

    config = config_of(name, **{"num_hidden_layers": 8} | CLASSES[name])
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    model = read(studio_page, json.loads(config.to_json_string(use_diff=False)))
    answer = count(studio_page, model)
    # left out are sinks, biases of one map alone and the gate of a shared expert
    parameters = sum(weights.numel() for weights in built.parameters())
    assert answer["weights"]["total"] == pytest.approx(parameters, rel=2e-4)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * 8
    own = len(kinds) - getattr(config, "num_kv_shared_layers", 0)
    full = sum(kind in FULL for kind in kinds[:own])
    layers = answer["layers"]
    assert sum(layer["count"] for layer in layers if layer["kind"] == "full") == full
    assert (
        studio_page.evaluate("(text) => studio.configWarning(text)", config.to_json_string()) == ""
    )


COUNTED = {
    "Qwen3-Next 80B-A3B": "qwen3_next",
    "Qwen3.5 35B-A3B": "qwen3_5_moe_text",
    "Llama 4 Scout": "llama4_text",
    "SmolLM3 3B": "smollm3",
    "MiniMax-M2": "minimax_m2",
    "DeepSeek-V3.2-Exp": "deepseek_v32",
    "GLM-5": "glm_moe_dsa",
    "GLM-4.7-Flash": "glm4_moe_lite",
    "Kimi Linear 48B-A3B": "kimi_linear",
    "Gemma 3n E4B": "gemma3n_text",
    "Mamba-2 7B": "mamba2",
}


@pytest.mark.parametrize("name", COUNTED)
def test_models_of_transformers_are_its_defaults(studio_page, name, models):
    config, known = config_of(COUNTED[name]), models[name]
    assert type(config).__name__ in PUBLISHED[name]["source"]
    sizes = read(studio_page, json.loads(config.to_json_string(use_diff=False)))
    other = {"name": name, "weight_bits": known["weight_bits"]}
    other["trained"] = known["trained"]
    assert EMPTY | sizes | other == known


def test_a_recurrent_layer_keeps_what_transformers_caches(studio_page):
    transformers = pytest.importorskip("transformers")
    config = config_of(
        "qwen3_next", hidden_size=32, num_hidden_layers=4, num_attention_heads=2, head_dim=16,
        num_key_value_heads=1, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=1,
        moe_intermediate_size=8, shared_expert_intermediate_size=8, vocab_size=32,
    )  # fmt: skip
    built = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = built(torch.zeros(1, 9, dtype=torch.long), use_cache=True)[CACHE_NAME]
    held = [value for layer in cache.layers for value in vars(layer).values()]
    held += [inner for value in held if isinstance(value, dict) for inner in value.values()]
    cached = sum(t.numel() for t in held if isinstance(t, torch.Tensor) and t.dim() > 2)
    model = read(studio_page, json.loads(config.to_json_string(use_diff=False)))
    sums, waiting = model["recurrent_numbers"], model["convolution_numbers"]
    request = {"models": [model], "length": 9, "memory": None}
    [answer] = studio_page.evaluate("(request) => window.studio.calculate(request)", request)
    assert answer["state"] == 4 * 3 * (sums + waiting) + 2 * 2 * 16 * 9
    # a convolution of 4 taps reads 3 earlier inputs, and transformers keeps the latest one, too
    assert cached == 3 * (sums + waiting // 3 * 4) + 2 * 16 * 9


PLAIN = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 9}
REFUSED = {
    "bert": ({"model_type": "bert"}, "not a decoder"),
    "t5": ({"model_type": "t5", "is_encoder_decoder": True}, "not a decoder"),
    "mamba": ({"model_type": "mamba", "state_size": 128, "ssm_cfg": {}}, "ssm_cfg"),
    "mamba2": ({"model_type": "mamba2", "state_size": 128, "expand": 2}, "mamba_n_groups"),
    "jamba": ({"model_type": "jamba", "mamba_d_state": 16}, "mamba_d_state"),
    "nemotron_h": ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "hybrid"),
    "kimi_linear": ({"model_type": "kimi_linear", "linear_attn_config": {}}, "layer_types"),
    "shared": ({"model_type": "new", "num_kv_shared_layers": 2}, "num_kv_shared_layers"),
    "indexer": ({"model_type": "new", "index_head_dim": 128}, "index_head_dim"),
    "widths": ({"model_type": "llama", "intermediate_size": [8, 8, 8, 9]}, "intermediate_size"),
    "fraction": ({"model_type": "llama", "num_attention_heads": 4.5}, "num_attention_heads"),
    "negative": ({"model_type": "llama", "hidden_size": -64}, "hidden_size"),
    "absurd": ({"model_type": "llama", "vocab_size": 1 << 40}, "vocab_size"),
    "text": ({"model_type": "llama", "num_key_value_heads": "8"}, "num_key_value_heads"),
    "truth": ({"model_type": "llama", "num_hidden_layers": True}, "num_hidden_layers"),
    "no heads": ({"model_type": "llama", "num_attention_heads": None}, "num_attention_heads"),
    "no window": ({"model_type": "llama", "layer_types": ["sliding_attention"] * 4}, "window"),
    "a kind": ({"model_type": "lfm2", "layer_types": ["conv"] * 4}, "the kind .?conv"),
    "too few": ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "of 1 layers"),
    "a stranger": ({"model_type": "new", "layer_types": ["linear_attention"] * 4}, "recurrent"),
    "contradiction": (
        {"model_type": "gemma2", "sliding_window": 8,
         "layer_types": ["linear_attention", "sliding_attention"] * 2},
        "recurrences",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_counted_is_refused(studio_page, name):
    config, match = REFUSED[name]
    with pytest.raises(Exception, match=match):
        read(studio_page, PLAIN | config)
    with pytest.raises(ConfigError, match=match):
        read_config(PLAIN | config)


@pytest.mark.parametrize("content", [None, [], 3, "{}"])
def test_a_config_is_an_object(content):
    with pytest.raises(ConfigError, match="object"):
        read_config(content)


def test_code_of_a_checkpoint_is_not_run_and_said(studio_page):
    config = PLAIN | {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    warning = studio_page.evaluate("(text) => studio.configWarning(text)", json.dumps(config))
    assert warning == read_config(config)[1]
    assert "not run" in warning
    assert "own" in warning


def test_an_unknown_family_is_counted_with_a_warning(studio_page):
    text = json.dumps(PLAIN | {"model_type": "newcomer"})
    studio_page.evaluate("() => { location.hash = '#calculator' }")
    studio_page.click("#config-box summary")
    studio_page.fill("#config-json", text)
    studio_page.click("#config-add")
    studio_page.locator("#calculator-table th", has_text="newcomer").wait_for()
    studio_page.locator("#config-error", has_text="newcomer").wait_for()
