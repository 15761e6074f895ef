"""Bytes of quantised checkpoints, from the tensors that each program stores for a linear map."""

from __future__ import annotations

import json
import math

import pytest
import torch

from suffice.choose.fits.calculator import count
from suffice.choose.fits.configs import read_config
from suffice.errors import ConfigError

SIZES = {
    "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16, "head_dim": 64,
    "num_key_value_heads": 4, "intermediate_size": 2560, "vocab_size": 3000,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 768, "num_experts_per_tok": 2}
SIZES_OF = {
    "qwen3_moe": EXPERTS | {"num_experts": 6},
    "deepseek_v3": EXPERTS | {
        "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "kv_lora_rank": 256, "q_lora_rank": 384, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "n_group": 2, "topk_group": 1,
    },
}  # fmt: skip
HEAD = ("lm_head",)
ATTENTION, SHARED, DENSE = "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.gate$"


def packed(bits, group, *, zeros=True):
    """Codes in int32, float16 scales, zero points in as many bits as codes."""

    def stored(out, into):
        groups = into / group if group > 0 else 1
        return (out * into * bits + groups * out * (16 + bits * zeros)) / 8

    return stored


def blocks(rows, columns, scale, bits=8):
    return lambda out, into: (
        out * into * bits / 8 + math.ceil(out / rows) * math.ceil(into / columns) * scale
    )


def normal_float(out, into, *, nested=False):
    scales = math.ceil(out * into / 64)
    return out * into / 2 + (scales + 4 * math.ceil(scales / 256) if nested else 4 * scales)


def compressed(form, *, targets="Linear", ignore=HEAD, **weights):
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": list(ignore),
        "config_groups": {"group_0": {"targets": [targets], "weights": weights}},
    }  # fmt: skip


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": False, "sym": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 64]}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
CASES = {
    # name: model_type, quantization_config, bytes of a linear map, names that are stored in 16 bits
    "awq": ("qwen3", AWQ, packed(4, 128), HEAD),
    "awq of 64": ("llama", AWQ | {"group_size": 64}, packed(4, 64), HEAD),
    "gptq of 8 bits": ("llama", GPTQ, packed(8, 32), HEAD),
    "gptq by rows": ("llama", GPTQ | {"bits": 3, "group_size": -1}, packed(3, -1), HEAD),
    "gptq with the head": ("llama", GPTQ | {"lm_head": True}, packed(8, 32), ()),
    "bitsandbytes": ("qwen3", BNB, normal_float, HEAD),
    "bitsandbytes twice": (
        "llama", BNB | {"bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
        lambda out, into: normal_float(out, into, nested=True), HEAD,
    ),
    "bitsandbytes of 8 bits": (
        "llama", {"load_in_8bit": True, "load_in_4bit": False}, blocks(1, 1 << 20, 4), HEAD,
    ),
    "bitsandbytes and the head": (
        "llama", BNB | {"llm_int8_skip_modules": ["vision_tower"]}, normal_float, (),
    ),
    "fp8": ("qwen3", FP8, blocks(128, 64, 4), HEAD),
    "fp8 of experts": ("deepseek_v3", FP8, blocks(128, 64, 4), (*HEAD, "mlp.gate.")),
    "mxfp8": (
        "llama", {"quant_method": "mxfp8", "weight_block_size": [1, 32]}, blocks(1, 32, 1), HEAD,
    ),
    "fp8 but not attention": (
        "llama", FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.*.self_attn"]},
        blocks(128, 64, 4), (*HEAD, "self_attn"),
    ),
    "ints in groups": ("llama", compressed("pack-quantized", **W4), packed(4, 32), HEAD),
    "ints in groups, symmetric": (
        "qwen3", compressed("pack-quantized", **W4 | {"symmetric": True}),
        packed(4, 32, zeros=False), HEAD,
    ),
    "floats by channels": (
        "qwen3", compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        blocks(1, 1 << 20, 2), HEAD,
    ),
    "nvfp4": (
        "llama", compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16),
        blocks(1, 16, 1, bits=4), HEAD,
    ),
    "experts alone": (
        "deepseek_v3",
        compressed("pack-quantized", ignore=(*HEAD, ATTENTION, SHARED, DENSE,
                   r"re:.*mlp\.(gate|up|down|gate_up)_proj.*"), **W4),
        packed(4, 32), (*HEAD, "self_attn", "shared_experts", "mlp.gate.", "layers.0.mlp"),
    ),
    "the head, too": ("llama", compressed("pack-quantized", ignore=(), **W4), packed(4, 32), ()),
    "dense": ("llama", compressed("dense", **W4), lambda out, into: 2 * out * into, ()),
}  # fmt: skip


def config_of(model_type, quantised):
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type](**SIZES | SIZES_OF.get(model_type, {}))
    # without transformers' own reading of it: compressed-tensors and bitsandbytes are not installed
    return config, json.loads(config.to_json_string(use_diff=False)) | {
        "quantization_config": quantised
    }


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_tensors_that_are_stored(name):
    from transformers import AutoModelForCausalLM

    model_type, quantised, stored, plain = CASES[name]
    config, content = config_of(model_type, quantised)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    expected = 0.0
    for key, weights in built.named_parameters():
        maps = weights if weights.dim() == 3 else weights[None]
        whole = weights.dim() < 2 or "embed" in key or any(part in key for part in plain)
        expected += sum(2 * one.numel() if whole else stored(*one.shape) for one in maps)
    sizes, warning = read_config(content)
    # left out are scales of whole rows, and 16 bits of norms and routers
    by_rows = name in ("gptq by rows", "bitsandbytes of 8 bits", "floats by channels")
    error = 4e-3 if by_rows else 1e-3
    assert count(sizes, 1).weight_bytes == pytest.approx(expected, rel=error)
    assert warning == ""


def test_fp8_takes_what_the_modules_of_transformers_take():
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config
    from transformers.integrations import finegrained_fp8

    options = {"weight_block_size": (128, 64), "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    config, content = config_of("qwen3_moe", FP8 | options | {"weight_block_size": [128, 64]})
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    skipped = ["lm_head", r"model\.layers\.[0-9]+\.mlp\.gate"]
    finegrained_fp8.replace_with_fp8_linear(built, skipped, FineGrainedFP8Config(**options))
    expected = sum(one.numel() * one.element_size() for one in built.parameters())
    assert count(read_config(content)[0], 1).weight_bytes == pytest.approx(expected, rel=1e-3)


REFUSED = {
    "a method": ({"quant_method": "aqlm"}, "aqlm"),
    "no method": ({"bits": 4}, "quant_method"),
    "no object": ("awq", "quantization_config"),
    "bits": (AWQ | {"bits": 0}, "bits"),
    "a group": (AWQ | {"group_size": 0}, "group_size"),
    "a block": (FP8 | {"weight_block_size": [128, "128"]}, "weight_block_size"),
    "schemes": (
        compressed("pack-quantized") | {"config_groups": {"a": {"weights": W4}, "b": {}}},
        "config_groups",
    ),
}  # fmt: skip
PARTLY = {
    "by layer": AWQ | {"dynamic": {"-:.*down_proj": {}}},
    "a layer": FP8 | {"modules_to_not_convert": ["model.layers.2.mlp", "model.layers.7.mlp"]},
    "a module": compressed("pack-quantized", ignore=(*HEAD, "re:.*strange.*"), **W4),
}


@pytest.mark.parametrize("name", [*CASES, *REFUSED, *PARTLY])
def test_the_page_reads_the_same(page, static, name):
    page.goto(static.as_uri())
    quantised = {**{key: case[1] for key, case in CASES.items()}, **PARTLY}
    quantised |= {key: case[0] for key, case in REFUSED.items()}
    model_type = CASES[name][0] if name in CASES else "llama"
    _, content = config_of(model_type, quantised[name])
    text = json.dumps(content)
    if name in REFUSED:
        with pytest.raises(Exception, match=REFUSED[name][1]):
            page.evaluate("(text) => studio.modelOfConfig(text)", text)
        return
    sizes, warning = read_config(content)
    assert page.evaluate("(text) => studio.modelOfConfig(text)", text) == sizes
    assert page.evaluate("(text) => studio.configWarning(text)", text) == warning


@pytest.mark.parametrize("name", REFUSED)
def test_bits_that_are_not_known_are_refused_and_may_be_given(name):
    quantised, named = REFUSED[name]
    _, content = config_of("llama", quantised)
    with pytest.raises(ConfigError, match=named):
        read_config(content)
    assert read_config(content, quantised=False)[0]["weight_bits"] == 16


def test_what_is_not_counted_is_said():
    words = {name: read_config(config_of("llama", one)[1])[1] for name, one in PARTLY.items()}
    assert "dynamic" in words["by layer"]
    assert "model.layers.2.mlp" in words["a layer"]
    assert "layers.7" not in words["a layer"]  # of a layer that predicts further tokens
    assert "strange" in words["a module"]
