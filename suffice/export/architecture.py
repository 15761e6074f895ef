"""Chooses the class of transformers that computes a model, and brings the weights into its form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers
from suffice.convert.maps import Maps, build, linear_maps
from suffice.convert.sources import ARCHITECTURES
from suffice.convert.sources.architecture import ConfigReader
from suffice.encoders import HeadLayerNorm, HeadRMS, NoNorm, Norm, ProjectionRMS
from suffice.errors import ConfigError
from suffice.layers import Attention, Experts
from suffice.layers.sinusoidal import sinusoidal
from suffice.lowering import BoundedSoftmax, DenseSoftmax, FeatureSum, not_dense
from suffice.models import LM
from suffice.models.classifier import Classifier
from suffice.models.vit import ViT
from suffice.patterns import Full
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    NTKScaling,
    PairScaling,
    Rope,
    YarnScaling,
)
from suffice.spec import AttentionSpec

ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
"""Our activations by their names in transformers."""
GATES = {"geglu_tanh": "gelu_pytorch_tanh", "geglu": "gelu"}
"""The activations of Gemma's MLPs by their names in transformers."""
TABLES = ("embedding.positions.weight", "positions.weight", "positions")


def config_of(model: nn.Module, *, begin: int | None = None, end: int | None = None) -> dict:
    """Return the config.json of the class of transformers that computes the same as a model.

    Args:
        model: an LM, a Classifier or a ViT.
        begin: id of the token that begins a text.
        end: id of the token that ends one.

    Raises:
        ConfigError: if there is no such class, saying what it would have to compute.

    Example:
        >>> from suffice import preset
        >>> from suffice.models import LMConfig
        >>> sizes = dict(vocabulary_size=9, length=16, d_model=16, depth=2, mlp_width=32)
        >>> lm = LMConfig(**sizes).build(preset("efficient", 16, 4, causal=True))
        >>> config_of(lm)["architectures"]
        ['GPT2LMHeadModel']
    """
    specs = [block.attention.spec for block in model.blocks]
    if isinstance(model, LM) and model.config.experts is not None:
        _check_experts(model.config.experts)
    for number, spec in enumerate(specs):
        _check_softmax(spec, f"layer {number}")
    if isinstance(model, LM):
        config = _decoder(model)
        return {**config, "bos_token_id": begin, "eos_token_id": end, "pad_token_id": None}
    for number, spec in enumerate(specs):
        if spec.pattern != Full() or spec.position != NoPosition():
            odd = spec.pattern if spec.pattern != Full() else spec.position
            _refuse(f"layer {number} has {odd!r}, which no class for whole inputs has")
    _check_uncapped(specs)
    _check_plain_heads(specs)
    return _vit(model) if isinstance(model, ViT) else _bert(model)


def _decoder(lm: LM) -> dict[str, Any]:
    config = lm.config
    if config.residual == "both" or config.activation in GATES:
        made = _gemma(lm)
    elif config.residual == "out":
        made = _olmo2(lm)
    elif config.activation == "swiglu":
        made = _llama(lm)
    elif config.positions == "none" and any(map(rotary_of, lm.specs)):
        made = _phi(lm) if config.head_bias else _gpt_neox(lm)
    else:
        made = _gpt2(lm)
    kind = made["model_type"]
    if config.head_bias and kind != "phi":
        _refuse(f"its head has a bias, and that of {kind}'s class none")
    if config.logit_cap is not None and kind not in ("gemma2", "gemma3_text"):
        _refuse(f"its head has logit_cap={config.logit_cap}, and that of {kind}'s class none")
    if kind != "gemma2":
        _check_uncapped(lm.specs)
    parallel = ("stablelm", "gpt_neox", "phi", "cohere", "cohere2")
    if config.residual == "parallel" and kind not in parallel:
        _refuse(f"its blocks have residual='parallel', and those of {kind}'s class not")
    return made if config.experts is None else _mixture(made, config.experts, _windows(lm))


def _check_experts(experts: Experts) -> None:
    """Refuse experts that are routed or made in another way than those of Mixtral and Qwen3."""
    plain = Experts(
        num_experts=experts.num_experts,
        top_k=experts.top_k,
        width=experts.width,
        normalised=experts.normalised,
        dense=experts.dense,
    )
    names = [field.name for field in fields(plain)]
    odd = [n for n in names if getattr(experts, n) != getattr(plain, n)]
    if odd:
        given = ", ".join(f"{name}={getattr(experts, name)!r}" for name in odd)
        _refuse_experts(f"its experts have {given}")


def _refuse_experts(why: str) -> NoReturn:
    raise ConfigError(
        f"no class of transformers computes this model: {why}, and experts are written for "
        "Mixtral's and Qwen3's classes alone; run it with `suffice generate`."
    )


def _mixture(made: dict[str, Any], experts: Experts, windows: list[int | None]) -> dict[str, Any]:
    """Return the entries of the class with experts beside one with MLPs."""
    entries = {n: value for n, value in made.items() if n not in ("layer_types", "mlp_bias")}
    entries |= {"num_local_experts": experts.num_experts, "num_experts_per_tok": experts.top_k}
    if made.get("mlp_bias"):
        _refuse_experts("its experts have biases")
    if len(set(windows)) > 1:
        _refuse_experts("its layers have different windows")
    if made["model_type"] == "qwen3":
        return {
            **entries,
            **_named("qwen3_moe", "Qwen3MoeForCausalLM"),
            "moe_intermediate_size": experts.width,
            "norm_topk_prob": experts.normalised,
            "mlp_only_layers": list(experts.dense),
        }
    if made["model_type"] not in ("llama", "mistral"):
        _refuse_experts(f"its attention is that of {made['model_type']}'s class")
    if made.get("attention_bias") or experts.dense or not experts.normalised:
        _refuse_experts(
            "it has biases, blocks without experts or weights that are not normalised, and no "
            "norms of queries and keys"
        )
    sizes = {"sliding_window": windows[0]}
    return {**entries, **_named("mixtral", "MixtralForCausalLM"), **sizes}


def _refuse(why: str) -> NoReturn:
    raise ConfigError(
        f"no class of transformers computes this model: {why}; export it to onnx or torch, which "
        "hold plain softmax attention of any encoder and pattern."
    )


def _check_softmax(spec: AttentionSpec, where: str) -> None:
    spec = replace(spec, norm=NoNorm())  # of queries and keys, which some classes have
    lowered = spec.lower()
    if isinstance(lowered, FeatureSum):
        _refuse(f"{where} sums features of {type(spec.kernel).__name__} instead of weighing pairs")
    if spec.shares is not None:
        _refuse(f"{where} reads the keys and values of layer {spec.shares}")
    capped = isinstance(lowered, BoundedSoftmax) and not lowered.sink
    if type(lowered) is not DenseSoftmax and not capped:
        field = not_dense(spec)
        _refuse(f"{where} has {field}={getattr(spec, field)!r}")
    if lowered.value_width != lowered.key_width:
        _refuse(f"{where} has values of another width than its keys, by {spec.encoder!r}")
    if lowered.mixing is not None:
        _refuse(f"{where} mixes its values along the sequence by {type(spec.mixing).__name__}")
    if lowered.infini is not None:
        _refuse(f"{where} reads the compressed past of {type(spec.past).__name__}")
    if lowered.alibi is not None:
        _refuse(f"{where} adds {type(spec.position).__name__} to its products")


def rotary_of(spec: AttentionSpec) -> Rope | None:
    """Return the rotary positions of a layer, whatever the norm of its queries and keys."""
    return replace(spec, norm=NoNorm()).lower().rotary


def _check_uncapped(specs: Sequence[AttentionSpec]) -> None:
    for number, spec in enumerate(specs):
        if not spec.kernel.plain:
            _refuse(f"layer {number} has kernel={spec.kernel!r}, and its class has no caps")


def _check_norms(lm: LM, norm: Norm, class_name: str) -> None:
    """Refuse another norm of queries and keys than that of a class, in any layer."""
    if norms := sorted({repr(spec.norm) for spec in lm.specs if spec.norm != norm}):
        _refuse(
            f"its layers have {' and '.join(norms)} on queries and keys, and {class_name}'s class "
            f"{norm!r} in all"
        )


def _check_plain_heads(specs: Sequence[AttentionSpec]) -> None:
    """Refuse norms of queries and keys, and heads that do not divide the model's width."""
    for number, spec in enumerate(specs):
        if spec.norm.norms:
            _refuse(f"layer {number} has {spec.norm!r} on queries and keys, and this class has not")
    _check_head_widths(specs)


def _check_head_widths(specs: Sequence[AttentionSpec]) -> None:
    """Refuse heads that do not divide the model's width."""
    for number, spec in enumerate(specs):
        if spec.num_heads * spec.head_width != spec.d_model:
            _refuse(
                f"layer {number} has {spec.num_heads} heads of {spec.head_width} features in a "
                f"model of {spec.d_model}, and this class divides the one by the other"
            )


def _check_activation(activation: str, class_name: str) -> None:
    if activation not in ACTIVATIONS:
        _refuse(f"{class_name}'s class has no {activation}")


def _equal(what: str, values: Sequence[int]) -> int:
    """Return the value that all layers have."""
    distinct = sorted(set(values))
    if len(distinct) > 1:
        _refuse(f"its layers have different {what}: {', '.join(map(str, distinct))}")
    return distinct[0]


def _named(kind: str, architecture: str) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [architecture]}


def _windows(lm: LM) -> list[int | None]:
    """Return the window of each layer; None = none."""
    windows = []
    for number, spec in enumerate(lm.specs):
        band = spec.pattern.band()
        if band is None or band.after != 0 or band.sinks:
            _refuse(f"layer {number} has the pattern {spec.pattern!r}")
        windows.append(None if band.before is None else band.before + 1)
    return windows


def _gpt2(lm: LM) -> dict[str, Any]:
    config, specs = lm.config, lm.specs
    _check_activation(config.activation, "GPT-2")
    if config.norm != "layer":
        _refuse(f"it has {config.norm} norms beside {config.activation}")
    for number, (spec, window) in enumerate(zip(specs, _windows(lm), strict=True)):
        if spec.position != NoPosition():
            _refuse(f"layer {number} rotates queries and keys beside {config.activation} MLPs")
        if window is not None:
            _refuse(f"layer {number} has a window, which GPT-2's class has not")
    _check_plain_heads(specs)
    return {
        **_named("gpt2", "GPT2LMHeadModel"),
        "vocab_size": config.vocabulary_size,
        "n_positions": config.length,
        "n_embd": config.d_model,
        "n_layer": config.depth,
        "n_head": _equal("heads", [spec.num_heads for spec in specs]),
        "n_inner": config.mlp_width,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.eps,
        "tie_word_embeddings": config.tied,
    }


def _sizes(lm: LM) -> tuple[dict[str, Any], list[Rope | None]]:
    """Return the sizes of classes with rotary positions, and the positions of each layer."""
    config, specs = lm.config, lm.specs
    if config.positions != "none":
        _refuse(
            f"it adds {config.positions} positions to its tokens beside {config.activation} MLPs"
        )
    head_dim = _equal("widths of heads", [spec.head_width for spec in specs])
    entries = {
        "vocab_size": config.vocabulary_size,
        "max_position_embeddings": config.length,
        "hidden_size": config.d_model,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": _equal("heads", [spec.num_heads for spec in specs]),
        "num_key_value_heads": math.lcm(*(spec.kv_heads for spec in specs)),
        "head_dim": head_dim,
        "tie_word_embeddings": config.tied,
    }
    return entries, [rotary_of(spec) for spec in specs]


def _rotary_entries(lm: LM) -> tuple[dict[str, Any], list[Rope | None]]:
    """Return the entries of classes with one rotary position, and the positions of each layer."""
    entries, rotary = _sizes(lm)
    return entries | {"rope_parameters": _one_rope(lm, rotary)}, rotary


def _one_rope(lm: LM, rotary: Sequence[Rope | None]) -> dict[str, Any]:
    ropes = [rope for rope in rotary if rope is not None]
    if len({(one.theta, one.features, one.scaling, one.length) for one in ropes}) > 1:
        _refuse("its layers rotate by different frequencies")
    rope = ropes[0] if ropes else Rope()
    return rope_parameters(rope, lm.specs[0].head_width, lm.config.length)


def _check_turning(lm: LM, rotary: Sequence[Rope | None], class_name: str) -> None:
    """Refuse heads of which not every feature rotates."""
    for number, (rope, spec) in enumerate(zip(rotary, lm.specs, strict=True)):
        if rope is None or rope.features not in (None, spec.head_width):
            _refuse(
                f"layer {number} has {spec.position!r}, and {class_name}'s class rotates every "
                "feature of every head"
            )


def _gemma(lm: LM) -> dict[str, Any]:
    """Return the configuration of Gemma's class; with norms after the branches Gemma 2's or 3's."""
    config, windows = lm.config, _windows(lm)
    if config.activation not in GATES:
        _refuse(
            f"its blocks have residual='both', which is Gemma's, beside {config.activation}, and "
            f"its classes have {' or '.join(GATES)}"
        )
    _check_fields("Gemma", config, {"norm": "rms", "bias": False})
    entries, rotary = _sizes(lm)
    _check_turning(lm, rotary, "Gemma")
    gates, heads = GATES[config.activation], entries["num_attention_heads"]
    biased = any(spec.bias for spec in lm.specs)
    entries |= {"rms_norm_eps": config.eps, "attention_bias": biased}
    if config.residual != "both":
        if any(windows):
            _refuse(f"its layers have windows beside {config.activation} and not residual='both'")
        _check_norms(lm, NoNorm(), "Gemma")
        turns = {"hidden_act": gates, "rope_parameters": _one_rope(lm, rotary)}
        return entries | turns | _named("gemma", "GemmaForCausalLM")
    if config.d_model % heads:
        _refuse(f"it has d_model={config.d_model}, and Gemma's classes a multiple of {heads} heads")
    entries |= _layer_types(windows, without=config.length) | {
        "hidden_activation": gates,
        "final_logit_softcapping": config.logit_cap,
        "query_pre_attn_scalar": _scalar(lm.specs[0]),
    }
    if any(spec.norm.norms for spec in lm.specs):
        _check_norms(lm, HeadRMS(config.eps), "Gemma 3")
        layers = list(zip(rotary, windows, strict=True))
        entries["rope_parameters"] = {
            "full_attention": _one_rope(lm, [rope for rope, size in layers if size is None]),
            "sliding_attention": _one_rope(lm, [rope for rope, size in layers if size]),
        }
        return entries | _named("gemma3_text", "Gemma3ForCausalLM")
    caps = sorted({repr(spec.kernel) for spec in lm.specs})
    if len(caps) > 1:
        _refuse(f"its layers have {' and '.join(caps)}, and Gemma 2's class one cap")
    entries["attn_logit_softcapping"] = lm.specs[0].kernel.cap
    entries["rope_parameters"] = _one_rope(lm, rotary)
    return entries | _named("gemma2", "Gemma2ForCausalLM")


def _scalar(spec: AttentionSpec) -> int:
    """Return the whole number whose root divides the products, or the usual one beside gains."""
    scalar = max(round(spec.score_scale**-2), 1)
    return scalar if scalar**-0.5 == spec.score_scale else spec.head_width


def _olmo2(lm: LM) -> dict[str, Any]:
    config = lm.config
    _check_fields("OLMo 2", config, {"activation": "swiglu", "norm": "rms", "bias": False})
    entries, rotary = _rotary_entries(lm)
    _check_turning(lm, rotary, "OLMo 2")
    _check_norms(lm, ProjectionRMS(config.eps), "OLMo 2")
    _equal("key/value heads", [spec.kv_heads for spec in lm.specs])  # each has gains of its own
    if any(_windows(lm)):
        _refuse("its blocks have residual='out' beside windows, which OLMo 2's class has not")
    return {
        **entries,
        **_named("olmo2", "Olmo2ForCausalLM"),
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "attention_bias": any(spec.bias for spec in lm.specs),
    }


def _cohere(lm: LM, windows: list[int | None], rotary: list[Rope | None]) -> dict[str, Any]:
    """Return the entries of Cohere's class, or of Cohere 2's where some layers have windows."""
    config = lm.config
    _check_head_widths(lm.specs)
    entries = {
        "layer_norm_eps": config.eps,
        "logit_scale": 1.0,  # which is in the weights
        "attention_bias": any(spec.bias for spec in lm.specs),
    }
    if all(rotary) and not any(windows):
        normed = {"use_qk_norm": _head_layer_norms(lm, "Cohere")}
        return entries | _named("cohere", "CohereForCausalLM") | normed
    _check_norms(lm, NoNorm(), "Cohere 2")
    for number, (rope, size) in enumerate(zip(rotary, windows, strict=True)):
        if (rope is None) != (size is None):
            _refuse(
                f"layer {number} has {lm.specs[number].position!r} and a window of {size}, and "
                "Cohere 2's class rotates where there is a window alone"
            )
    named = _named("cohere2", "Cohere2ForCausalLM")
    return entries | named | _layer_types(windows, without=config.length)


def _llama(lm: LM) -> dict[str, Any]:
    """Return the configuration of Llama's class, or of a relative."""
    config, specs = lm.config, lm.specs
    entries, rotary = _rotary_entries(lm)
    rope = next((one for one in rotary if one is not None), Rope())
    entries["hidden_act"], head_dim = "silu", entries["head_dim"]
    windows = _windows(lm)
    biased = any(spec.bias for spec in specs)
    partial = rope.features not in (None, head_dim)
    if config.norm == "layer":
        cohere = config.residual == "parallel" and not config.bias and not partial
        return entries | (_cohere if cohere else _stablelm)(lm, windows, rotary)
    entries["rms_norm_eps"] = config.eps
    if any(spec.norm.norms for spec in specs):
        plain = all(rotary) and not partial and not config.bias
        return entries | _qwen3(lm, windows, plain=plain) | {"attention_bias": biased}
    if partial:
        scaled = entries["rope_parameters"]["rope_type"] != "default"
        if not all(rotary) or len(set(windows)) > 1 or biased or config.bias or scaled:
            _refuse(
                "some features of its heads rotate beside biases, scaled frequencies or layers "
                "that differ"
            )
        return entries | _named("phi3", "Phi3ForCausalLM") | {"sliding_window": windows[0]}
    biases = {"attention_bias": biased, "mlp_bias": config.bias}
    if all(rotary) and not any(windows):
        return entries | _named("llama", "LlamaForCausalLM") | biases
    if all(rotary) and len(set(windows)) == 1 and not biased and not config.bias:
        return entries | _named("mistral", "MistralForCausalLM") | {"sliding_window": windows[0]}
    return {
        **entries,
        **_named("smollm3", "SmolLM3ForCausalLM"),
        "no_rope_layers": [int(one is not None) for one in rotary],
        **_layer_types(windows),
        "use_sliding_window": any(windows),
        **biases,
    }


def _qwen3(lm: LM, windows: list[int | None], *, plain: bool) -> dict[str, Any]:
    _check_norms(lm, HeadRMS(lm.config.eps), "Qwen3")
    if not plain:
        _refuse(
            "queries and keys are normalised beside MLPs with biases or heads that do not rotate"
        )
    used = {"use_sliding_window": any(windows)}
    return _named("qwen3", "Qwen3ForCausalLM") | _layer_types(windows) | used


def _layer_types(windows: list[int | None], *, without: int | None = None) -> dict[str, Any]:
    """Return the entries of windows of some layers; the size is `without` where none has one."""
    sizes = {size for size in windows if size is not None}
    if len(sizes) > 1:
        _refuse(f"its layers have windows of {' and '.join(map(str, sorted(sizes)))} tokens")
    return {
        "layer_types": [
            "full_attention" if size is None else "sliding_attention" for size in windows
        ],
        "sliding_window": next(iter(sizes), without),
    }


def _stablelm(lm: LM, windows: list[int | None], rotary: list[Rope | None]) -> dict[str, Any]:
    normed = _head_layer_norms(lm, "StableLM")
    _check_turning_layers(windows, rotary)
    _check_head_widths(lm.specs)
    return {
        **_named("stablelm", "StableLmForCausalLM"),
        "layer_norm_eps": lm.config.eps,
        "use_qkv_bias": any(spec.bias for spec in lm.specs),
        "qk_layernorm": normed,
        "use_parallel_residual": lm.config.residual == "parallel",
    }


def _check_layer_norms(lm: LM, windows: list[int | None], rotary: list[Rope | None]) -> None:
    """Refuse what no class with layer norms and rotary positions has."""
    _check_turning_layers(windows, rotary)
    _check_plain_heads(lm.specs)


def _check_turning_layers(windows: list[int | None], rotary: list[Rope | None]) -> None:
    if any(windows) or not all(rotary):
        _refuse("it has layer norms beside windows or layers that do not rotate")


def _head_layer_norms(lm: LM, class_name: str) -> bool:
    """Return whether all layers have a layer norm of each head; refuse others, and some alone."""
    if not any(spec.norm.norms for spec in lm.specs):
        return False
    _check_norms(lm, HeadLayerNorm(lm.config.eps), class_name)
    _equal("key/value heads", [spec.kv_heads for spec in lm.specs])  # each has gains of its own
    return True


def _rotary_gelu(lm: LM, class_name: str) -> dict[str, Any]:
    """Return the entries of classes with layer norms, rotary positions and MLPs without gates."""
    config = lm.config
    _check_activation(config.activation, class_name)
    if config.norm != "layer":
        _refuse(f"it has {config.norm} norms beside {config.activation}")
    entries, rotary = _rotary_entries(lm)
    _check_layer_norms(lm, _windows(lm), rotary)
    entries |= {"hidden_act": ACTIVATIONS[config.activation], "layer_norm_eps": config.eps}
    return {name: value for name, value in entries.items() if name != "head_dim"}


def _gpt_neox(lm: LM) -> dict[str, Any]:
    entries = _rotary_gelu(lm, "GPT-NeoX")
    del entries["num_key_value_heads"]  # as many as heads
    return {
        **entries,
        **_named("gpt_neox", "GPTNeoXForCausalLM"),
        "attention_bias": any(spec.bias for spec in lm.specs),
        "use_parallel_residual": lm.config.residual == "parallel",
    }


def _phi(lm: LM) -> dict[str, Any]:
    if lm.config.residual != "parallel":
        _refuse("its head has a bias, and its blocks are not parallel")
    return {
        **_rotary_gelu(lm, "Phi"),
        **_named("phi", "PhiForCausalLM"),
        "qk_layernorm": False,
    }


def _bert(model: Classifier) -> dict[str, Any]:
    config = model.config
    wanted = {
        "norm": "post",
        "pooling": "first",
        "head_widths": (config.d_model,),
        "head_activation": "tanh",
        "embedding_norm": True,
        "reads_padding": False,
    }
    _check_fields("BERT", config, wanted)
    _check_activation(config.activation, "BERT")
    return {
        **_named("bert", "BertForSequenceClassification"),
        "vocab_size": config.vocabulary_size,
        "max_position_embeddings": config.length,
        **_encoder_entries(model),
        "hidden_act": ACTIVATIONS[config.activation],
        "type_vocab_size": 2,
        "pad_token_id": None,
    }


def _vit(model: ViT) -> dict[str, Any]:
    config = model.config
    names = ("deit", "DeiTForImageClassificationWithTeacher")
    pooling = "distilled"
    if config.pooling != pooling:
        names, pooling = ("vit", "ViTForImageClassification"), "class_token"
    _check_fields("ViT", config, {"norm": "pre", "pooling": pooling, "head_widths": ()})
    return {
        **_named(*names),
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        **_encoder_entries(model),
        "hidden_act": "gelu",
        "qkv_bias": True,
    }


def _check_fields(class_name: str, config: Any, wanted: dict[str, Any]) -> None:
    for name, legal in wanted.items():
        value = getattr(config, name)
        if value != legal:
            _refuse(f"{class_name}'s class has {name}={legal!r}, and this model {value!r}")


def _encoder_entries(model: Classifier | ViT) -> dict[str, Any]:
    config = model.config
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.depth,
        "num_attention_heads": _equal(
            "heads", [block.attention.spec.num_heads for block in model.blocks]
        ),
        "intermediate_size": config.mlp_width,
        "layer_norm_eps": config.eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(n): str(n) for n in range(config.num_classes)},
        "label2id": {str(n): n for n in range(config.num_classes)},
    }


def rope_parameters(rope: Rope, head_dim: int, length: int) -> dict[str, Any]:
    """Return the entry rope_parameters of a model that reads texts of this length."""
    features, scaling = rope.features or head_dim, rope.scaling
    entry: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": rope.theta,
        "partial_rotary_factor": _share_of(features, head_dim),
    }
    if rope.length is not None and not (scaling is None or isinstance(scaling, PairScaling)):
        raise ConfigError(f"transformers has no {rope!r}; export the model to onnx or torch.")
    if isinstance(scaling, LinearScaling):
        entry |= {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, NTKScaling):
        entry["rope_theta"] = rope.theta * scaling.factor ** (features / max(features - 2, 1))
    elif isinstance(scaling, Llama3Scaling):
        entry |= {"rope_type": "llama3", "factor": scaling.factor}
        entry |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        entry["original_max_position_embeddings"] = scaling.length
    elif isinstance(scaling, YarnScaling):
        entry |= {"rope_type": "yarn", "factor": scaling.factor, "truncate": scaling.truncate}
        entry |= {"beta_fast": scaling.fast, "beta_slow": scaling.slow}
        entry["attention_factor"] = scaling.amplitude
        entry["original_max_position_embeddings"] = scaling.length
    elif isinstance(scaling, PairScaling):
        factors = list(scaling.factors)
        entry |= {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
        entry["attention_factor"] = scaling.amplitude
        entry["original_max_position_embeddings"] = rope.length or length
    elif scaling is None and rope.length is not None:  # the scaling that begins at the length
        entry |= {"rope_type": "dynamic", "factor": 1.0}
    elif scaling is not None:
        raise ConfigError(f"transformers has no {scaling!r}; export the model to onnx or torch.")
    return entry


def _share_of(features: int, head_dim: int) -> float:
    """Return the share of a head's features that rounds down to a number of them.

    Example:
        >>> _share_of(2, 8), int(44 * (30 / 44)), int(44 * _share_of(30, 44))
        (0.25, 29, 30)
    """
    share = features / head_dim
    return share if int(head_dim * share) == features else math.nextafter(share, 1.0)


@torch.no_grad()
def stock_model(
    model: nn.Module, config: dict[str, Any], kv_heads: Sequence[int] | None = None
) -> nn.Module:
    """Return the model that a config.json describes, with weights to compute the same as another.

    Keys and values that are columns become maps, shared heads are repeated where the class has
    none, rotary pairs are brought into its order, and tensors that only the class has are zero.

    Args:
        model: in float32.
        config: of it, by `config_of`.
        kv_heads: of each layer, for programs in which they may differ; as `config` says otherwise.
    """
    stock = ARCHITECTURES[config["model_type"]].build(ConfigReader(config, "config.json"))
    if kv_heads is not None:
        pairs = zip(stock.specs, kv_heads, strict=True)
        stock = stock.config.build([replace(spec, num_kv_heads=heads) for spec, heads in pairs])
    specs = {name: layer.spec for name, layer in attention_layers(stock).items()}
    state = {}
    for name, layer in attention_layers(model).items():
        built = build(_stock_maps(layer, specs[name]), specs[name], like=layer)
        _adapt_gains(built, layer.spec)
        state |= {f"{name}.{part}": tensor for part, tensor in built.state_dict().items()}
    weights = model.state_dict()
    sinusoids = getattr(model.config, "positions", "") == "sinusoidal"
    for name, tensor in stock.state_dict().items():
        if name in state:
            continue
        if name in weights:
            state[name] = weights[name]
        elif name in TABLES and sinusoids:
            place = {"device": torch.device("cpu"), "dtype": torch.float32}
            state[name] = sinusoidal(*tensor.shape, **place)
        else:
            state[name] = torch.zeros(tensor.shape)
    stock.load_state_dict(state, assign=True)
    return stock.eval()


def _stock_maps(layer: Attention, stock: AttentionSpec) -> Maps:
    maps, spec = linear_maps(layer).with_heads(stock.kv_heads), layer.spec
    q, k = maps.q, maps.k
    if not spec.norm.norms:  # a norm would divide by any factor again
        q = q * (spec.score_scale / stock.score_scale)
    if rope := rotary_of(spec):
        q, k = (_in_layout(one, rope, stock.position.layout) for one in (q, k))
    return replace(maps, q=q, k=k)


def _adapt_gains(layer: Attention, spec: AttentionSpec) -> None:
    """Bring the gains of normalised queries and keys into the class's order, and scale."""
    if not spec.norm.norms:
        return
    gains = [next(norm.parameters()) for norm in (layer.q_norm, layer.k_norm)]
    gains[0] *= spec.score_scale / layer.spec.score_scale
    if rope := rotary_of(spec):
        for gain in gains:  # of one head, or of each
            heads = gain.clone().view(-1, 1, spec.head_width)
            gain.copy_(_in_layout(heads, rope, layer.spec.position.layout).view_as(gain))


def _in_layout(part: Tensor, rope: Rope, layout: str) -> Tensor:
    """Return maps [heads, inputs, D] of queries or keys with rotary pairs in a layout.

    Example:
        >>> _in_layout(torch.arange(4.0).view(1, 1, 4), Rope(layout="interleaved"), "half")
        tensor([[[0., 2., 1., 3.]]])
        >>> _in_layout(torch.arange(4.0).view(1, 1, 4), Rope(), "interleaved")
        tensor([[[0., 2., 1., 3.]]])
    """
    if rope.layout == layout:
        return part
    features = rope.features or part.shape[-1]
    pairs = (-1, 2) if layout == "half" else (2, -1)
    order = torch.arange(features).unflatten(0, pairs).T.flatten()
    return torch.cat([part[..., :features][..., order], part[..., features:]], dim=-1)
