"""Which class of transformers computes what a model computes, as its config.json.

Asked is only what a class cannot do at all; weights are brought into its form by `described`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attention_layers
from suffice.convert.maps import Maps, build, read
from suffice.convert.sources import ARCHITECTURES
from suffice.convert.sources.architecture import ConfigReader
from suffice.encoders import HeadRMS
from suffice.errors import ConfigError
from suffice.layers import Attention
from suffice.layers.sinusoidal import sinusoidal
from suffice.models import LM
from suffice.models.classifier import Classifier
from suffice.models.vit import ViT
from suffice.patterns import Full
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    NTKScaling,
    Rope,
    YarnScaling,
)
from suffice.spec import AttentionSpec


def rope_parameters(rope: Rope, head_dim: int) -> dict[str, Any]:
    """Return the entry rope_parameters.

    Args:
        rope: the positions; the layout is not told, as `halved` brings any into the usual one.
        head_dim: width of a head.

    Raises:
        ConfigError: for a scaling of one's own.
    """
    features, one = rope.features or head_dim, rope.scaling
    told: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    told["partial_rotary_factor"] = share_of(features, head_dim)
    if isinstance(one, LinearScaling):
        told |= {"rope_type": "linear", "factor": one.factor}
    elif isinstance(one, NTKScaling):
        told["rope_theta"] = rope.theta * one.factor ** (features / max(features - 2, 1))
    elif isinstance(one, Llama3Scaling):
        told |= {"rope_type": "llama3", "factor": one.factor}
        told |= {"low_freq_factor": one.low, "high_freq_factor": one.high}
        told["original_max_position_embeddings"] = one.length
    elif isinstance(one, YarnScaling):
        told |= {"rope_type": "yarn", "factor": one.factor, "truncate": one.truncate}
        told |= {"beta_fast": one.fast, "beta_slow": one.slow}
        told["attention_factor"] = one.amplitude
        told["original_max_position_embeddings"] = one.length
    elif one is not None:
        raise ConfigError(f"transformers knows no {one!r}; export the model to onnx or torch.")
    return told


def share_of(features: int, head_dim: int) -> float:
    """Return the share of a head's features that is rounded down to so many.

    Example:
        >>> share_of(2, 8), int(44 * (30 / 44)), int(44 * share_of(30, 44))
        (0.25, 29, 30)
    """
    share = features / head_dim
    return share if int(head_dim * share) == features else math.nextafter(share, 1.0)


def halved(part: Tensor, rope: Rope) -> Tensor:
    """Return maps [heads, inputs, D] of queries or keys with pairs (i, i + features/2).

    Example:
        >>> halved(torch.arange(4.0).view(1, 1, 4), Rope(layout="interleaved"))
        tensor([[[0., 2., 1., 3.]]])
    """
    if rope.layout == "half":
        return part
    features = rope.features or part.shape[-1]
    at = torch.arange(features).unflatten(0, (-1, 2)).T.flatten()
    return torch.cat([part[..., :features][..., at], part[..., features:]], dim=-1)


GPT2_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
ANYWHERE = "export it to onnx or torch, which take what it computes as it is"


def config_of(model: nn.Module, *, begin: int | None = None, end: int | None = None) -> dict:
    """Return the config.json of the class of transformers that computes what a model does.

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
    marks = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": None}
    if isinstance(model, LM):
        for number, spec in enumerate(model.specs):
            _check(spec, f"layer {number}")
        rotary = model.config.activation == "swiglu"
        return {**(_rotary(model) if rotary else _gpt2(model)), **marks}
    specs = [block.attention.spec for block in model.blocks]
    for number, spec in enumerate(specs):
        _check(spec, f"layer {number}")
        if spec.pattern != Full() or spec.position != NoPosition():
            odd = spec.pattern if spec.pattern != Full() else spec.position
            _refuse(f"layer {number} has {odd!r}, which no class for whole inputs here has")
        _no_norm(spec, f"layer {number}")
        _own_width(spec, f"layer {number}")
    return _vit(model) if isinstance(model, ViT) else _bert(model)


def _refuse(why: str) -> NoReturn:
    raise ConfigError(f"no class of transformers computes this model: {why}; {ANYWHERE}.")


def _check(spec: AttentionSpec, where: str) -> None:
    """Refuse a layer whose attention is not a softmax over plain keys and values."""
    if not spec.kernel.weighs_pairs:
        _refuse(f"{where} sums features of {type(spec.kernel).__name__} instead of weighing pairs")
    if spec.mixing.mixes:
        _refuse(f"{where} mixes its values along the sequence by {type(spec.mixing).__name__}")
    if spec.past.reads:
        _refuse(f"{where} reads the compressed past of {type(spec.past).__name__}")
    if spec.position.biases:
        _refuse(f"{where} adds {type(spec.position).__name__} to its products")


def _no_norm(spec: AttentionSpec, where: str) -> None:
    if spec.norm.norms:
        _refuse(f"{where} has {spec.norm!r} on queries and keys, which this class has not")


def _own_width(spec: AttentionSpec, where: str) -> None:
    if spec.num_heads * spec.head_width != spec.d_model:
        _refuse(
            f"{where} has {spec.num_heads} heads of {spec.head_width} features in a model of "
            f"{spec.d_model}, and this class divides the one by the other"
        )


def _gpt2(lm: LM) -> dict[str, Any]:
    own = lm.config
    if own.activation not in GPT2_ACTIVATIONS:
        _refuse(f"GPT-2's class has no {own.activation}")
    if own.norm != "layer":
        _refuse(f"it has {own.norm} norms beside {own.activation}")
    for number, spec in enumerate(lm.specs):
        if spec.position != NoPosition():
            _refuse(f"layer {number} turns queries and keys beside {own.activation} MLPs")
        if _window(spec, number) is not None:
            _refuse(f"layer {number} has a window, which GPT-2's class has not")
        _no_norm(spec, f"layer {number}")
        _own_width(spec, f"layer {number}")
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": own.vocabulary_size,
        "n_positions": own.length,
        "n_embd": own.d_model,
        "n_layer": own.depth,
        "n_head": _one("heads", [spec.num_heads for spec in lm.specs]),
        "n_inner": own.mlp_width,
        "activation_function": GPT2_ACTIVATIONS[own.activation],
        "layer_norm_epsilon": own.eps,
        "tie_word_embeddings": own.tied,
    }


def _rotary(lm: LM) -> dict[str, Any]:
    own, specs = lm.config, lm.specs
    if own.positions != "none":
        _refuse(f"it adds {own.positions} positions to its tokens beside swiglu MLPs")
    ropes = [spec.position for spec in specs if isinstance(spec.position, Rope)]
    heads = _one("heads", [spec.num_heads for spec in specs])
    width = _one("widths of heads", [spec.head_width for spec in specs])
    rope = ropes[0] if ropes else Rope()
    if any(
        (one.theta, one.features, one.scaling) != (rope.theta, rope.features, rope.scaling)
        for one in ropes
    ):
        _refuse("its layers turn by different frequencies")
    windows = [_window(spec, number) for number, spec in enumerate(specs)]
    entries = {
        "vocab_size": own.vocabulary_size,
        "max_position_embeddings": own.length,
        "hidden_size": own.d_model,
        "intermediate_size": own.mlp_width,
        "num_hidden_layers": own.depth,
        "num_attention_heads": heads,
        "num_key_value_heads": math.lcm(*(spec.kv_heads for spec in specs)),
        "head_dim": width,
        "hidden_act": "silu",
        "tie_word_embeddings": own.tied,
        "rope_parameters": rope_parameters(rope, width),
    }
    biased = any(spec.bias for spec in specs)
    turned = [isinstance(spec.position, Rope) for spec in specs]
    partial = rope.features not in (None, width)
    if own.norm == "layer":
        return entries | _stablelm(lm, windows, turned)
    entries["rms_norm_eps"] = own.eps
    if any(spec.norm.norms for spec in specs):
        return entries | _qwen3(lm, windows, turned, plain=not partial) | {"attention_bias": biased}
    if partial:
        scaled = entries["rope_parameters"]["rope_type"] != "default"
        return entries | _phi3(windows, turned, plain=not (biased or own.bias or scaled))
    biases = {"attention_bias": biased, "mlp_bias": own.bias}
    if all(turned) and not any(windows):
        return entries | _named("llama", "LlamaForCausalLM") | biases
    alike = len(set(windows)) == 1
    if all(turned) and alike and not biased and not own.bias:
        return entries | _named("mistral", "MistralForCausalLM") | {"sliding_window": windows[0]}
    return entries | _smollm3(windows, turned) | biases


def _named(kind: str, architecture: str) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [architecture]}


def _qwen3(lm: LM, windows: list[int | None], turned: list[bool], *, plain: bool) -> dict[str, Any]:
    if {spec.norm for spec in lm.specs} != {HeadRMS(lm.config.eps)}:
        _refuse(
            f"its layers have {' and '.join(sorted({repr(s.norm) for s in lm.specs}))} on queries "
            f"and keys, and Qwen3's class HeadRMS(eps={lm.config.eps}), as its other norms, in all"
        )
    if not all(turned) or not plain or lm.config.bias:
        _refuse("queries and keys are normalised beside MLPs with biases or heads that do not turn")
    return {**_named("qwen3", "Qwen3ForCausalLM"), **_layer_types(windows)}


def _smollm3(windows: list[int | None], turned: list[bool]) -> dict[str, Any]:
    return {
        **_named("smollm3", "SmolLM3ForCausalLM"),
        "no_rope_layers": [int(one) for one in turned],
        **_layer_types(windows),
    }


def _layer_types(windows: list[int | None]) -> dict[str, Any]:
    """Return what tells the windows of a model whose layers differ."""
    sizes = {size for size in windows if size is not None}
    if len(sizes) > 1:
        _refuse(f"its layers have windows of {' and '.join(map(str, sorted(sizes)))} tokens")
    return {
        "layer_types": [
            "full_attention" if size is None else "sliding_attention" for size in windows
        ],
        "use_sliding_window": bool(sizes),
        "sliding_window": next(iter(sizes), None),
    }


def _phi3(windows: list[int | None], turned: list[bool], *, plain: bool) -> dict[str, Any]:
    if not all(turned) or len(set(windows)) > 1 or not plain:
        _refuse("some features of its heads turn beside biases, scaled turns or layers that differ")
    return {**_named("phi3", "Phi3ForCausalLM"), "sliding_window": windows[0]}


def _stablelm(lm: LM, windows: list[int | None], turned: list[bool]) -> dict[str, Any]:
    if any(windows) or not all(turned):
        _refuse("it has layer norms beside windows or layers that do not turn")
    for number, spec in enumerate(lm.specs):
        _no_norm(spec, f"layer {number}")
        _own_width(spec, f"layer {number}")
    return {
        **_named("stablelm", "StableLmForCausalLM"),
        "layer_norm_eps": lm.config.eps,
        "use_qkv_bias": any(spec.bias for spec in lm.specs),
        "qk_layernorm": False,
        "use_parallel_residual": False,
    }


def _bert(model: Classifier) -> dict[str, Any]:
    own = model.config
    wanted = {
        "norm": "post",
        "pooling": "first",
        "head_widths": (own.d_model,),
        "head_activation": "tanh",
        "embedding_norm": True,
        "reads_padding": False,
    }
    for name, legal in wanted.items():
        if getattr(own, name) != legal:
            _refuse(f"BERT's class has {name}={legal!r}, and this model {getattr(own, name)!r}")
    if own.activation not in GPT2_ACTIVATIONS:
        _refuse(f"BERT's class has no {own.activation}")
    return {
        **_named("bert", "BertForSequenceClassification"),
        "vocab_size": own.vocabulary_size,
        "max_position_embeddings": own.length,
        **_whole(own, [block.attention.spec for block in model.blocks]),
        "hidden_act": GPT2_ACTIVATIONS[own.activation],
        "type_vocab_size": 2,
        "pad_token_id": None,
    }


def _vit(model: ViT) -> dict[str, Any]:
    own = model.config
    for name, legal in {"norm": "pre", "pooling": "class_token", "head_widths": ()}.items():
        if getattr(own, name) != legal:
            _refuse(f"ViT's class has {name}={legal!r}, and this model {getattr(own, name)!r}")
    return {
        **_named("vit", "ViTForImageClassification"),
        "image_size": own.image_size,
        "patch_size": own.patch_size,
        "num_channels": own.channels,
        **_whole(own, [block.attention.spec for block in model.blocks]),
        "hidden_act": "gelu",
        "qkv_bias": True,
    }


def _whole(own: Any, specs: Sequence[AttentionSpec]) -> dict[str, Any]:
    """Return what models that read a whole input at once have in common."""
    return {
        "hidden_size": own.d_model,
        "num_hidden_layers": own.depth,
        "num_attention_heads": _one("heads", [spec.num_heads for spec in specs]),
        "intermediate_size": own.mlp_width,
        "layer_norm_eps": own.eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(n): str(n) for n in range(own.num_classes)},
        "label2id": {str(n): n for n in range(own.num_classes)},
    }


def _one(what: str, values: Sequence[int]) -> int:
    found = sorted(set(values))
    if len(found) > 1:
        _refuse(f"its layers have different {what}: {', '.join(map(str, found))}")
    return found[0]


def _window(spec: AttentionSpec, number: int) -> int | None:
    band = spec.pattern.band()
    if band is None or band.after != 0 or band.sinks:
        _refuse(f"layer {number} sees by {spec.pattern!r}")
    return None if band.before is None else band.before + 1


TABLES = ("embedding.positions.weight", "positions.weight", "positions")


@torch.no_grad()
def described(model: nn.Module, config: dict[str, Any]) -> nn.Module:
    """Return the model that a config.json describes, computing what another computes.

    Keys and values that are columns become maps, shared heads are repeated where the class has
    none, rotary pairs come into its order, and what it adds and the model does not is zero.

    Args:
        model: in float32.
        config: what `config_of` returned for it.
    """
    target = ARCHITECTURES[config["model_type"]].build(ConfigReader(config, "config.json"))
    goals, state = attention_layers(target), {}
    for name, layer in attention_layers(model).items():
        spec = goals[name].spec
        made = build(_arranged(read(layer), layer.spec, spec), spec, like=layer)
        _arrange_gains(made, layer.spec)
        state |= {f"{name}.{part}": tensor for part, tensor in made.state_dict().items()}
    own = model.state_dict()
    for name, tensor in target.state_dict().items():
        if name not in state:
            state[name] = own[name] if name in own else _absent(name, tensor, model)
    target.load_state_dict(state, assign=True)
    return target.eval()


def _arranged(maps: Maps, spec: AttentionSpec, goal: AttentionSpec) -> Maps:
    """Return the maps of a layer as the class has them."""
    maps = maps.with_heads(goal.kv_heads)
    q, k = maps.q, maps.k
    if not spec.norm.norms:  # which takes any factor away again
        q = q * (spec.score_scale / goal.score_scale)
    if isinstance(spec.position, Rope):
        q, k = halved(q, spec.position), halved(k, spec.position)
    return replace(maps, q=q, k=k)


def _arrange_gains(layer: Attention, was: AttentionSpec) -> None:
    """Bring the gains of normalised queries and keys into the class's order, a scale with them."""
    if not was.norm.norms:
        return
    layer.q_norm.weight *= was.score_scale / layer.spec.score_scale
    for norm in (layer.q_norm, layer.k_norm):
        norm.weight.copy_(halved(norm.weight[None, None].clone(), was.position)[0, 0])


def _absent(name: str, like: Tensor, model: nn.Module) -> Tensor:
    """Return what the class has and the model has not: zeros, or a table of computed positions."""
    if name in TABLES and model.config.positions == "sinusoidal":
        return sinusoidal(*like.shape, device=torch.device("cpu"), dtype=torch.float32)
    return torch.zeros(like.shape)
