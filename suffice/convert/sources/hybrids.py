"""Hybrids of transformers: most layers are recurrences, and every few have softmax attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from suffice.combine import Gated, NormedGate
from suffice.convert.sources.architecture import (
    Architecture,
    ConfigReader,
    TensorMapping,
    linear,
    norm,
)
from suffice.convert.sources.decoders import (
    gated,
    granite_multipliers,
    granite_scale,
    head_and_tokens,
    longest_text,
    multiplied,
    read_rope,
)
from suffice.encoders import HeadRMS, MultiValue
from suffice.errors import ConfigError
from suffice.kernels import Decayed, Delta
from suffice.models import LM, LMConfig
from suffice.patterns import Causal
from suffice.positions import NoPosition
from suffice.spec import AttentionSpec

LAYER_TYPES = ("linear_attention", "full_attention")
OLDER_TYPES = {"mamba": LAYER_TYPES[0], "attention": LAYER_TYPES[1]}
UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])  # as transformers writes it
Inputs = Callable[[str, str, ConfigReader], list[TensorMapping]]
"""Maps what reads the input of a recurrent layer, theirs and ours."""


def _build(reader: ConfigReader, *, kv_heads: int) -> LM:
    reader.one_of("is_causal", True)
    reader.one_of("hidden_act", "silu")
    width, depth = reader.size("hidden_size"), reader.depth("num_hidden_layers")
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=depth,
        mlp_width=reader.size("intermediate_size"),
        activation="swiglu",
        norm="rms",
        eps=reader.number("rms_norm_eps", 1e-6),
        positions="none",
        bias=False,
        tied=reader.flag("tie_word_embeddings"),
    )
    head_dim = reader.size("head_dim", 256)
    full = AttentionSpec(
        d_model=width,
        num_heads=reader.size("num_attention_heads"),
        num_kv_heads=reader.size("num_key_value_heads", kv_heads),
        head_dim=head_dim,
        pattern=Causal(),
        norm=HeadRMS(config.eps),
        position=read_rope(reader, head_dim, share=0.25),
        combine=Gated(),
        bias=reader.flag("attention_bias"),
    )
    keys, values = _recurrent_heads(reader)
    recurrent = AttentionSpec(
        d_model=width,
        num_heads=values,
        head_dim=reader.size("linear_key_head_dim", 128),
        pattern=Causal(),
        encoder=MultiValue(groups=keys, value_dim=reader.size("linear_value_head_dim", 128)),
        kernel=Delta(convolution=reader.size("linear_conv_kernel_dim", 4)),
        combine=Gated(activation="silu", norm=True, eps=config.eps),
        bias=False,
    )
    layers = _recurrent_layers(reader, depth)
    return config.build([recurrent if one else full for one in layers], device="meta")


def _build_next(reader: ConfigReader) -> LM:
    """Return a model whose blocks all have MLPs; experts beside one with a gate are refused."""
    depth, step = reader.depth("num_hidden_layers"), reader.size("decoder_sparse_step", 1)
    listed = reader.entries.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise ConfigError(f"{reader.where}: mlp_only_layers={listed!r:.80} is no list of layers.")
    mixtures = [n for n in range(depth) if n not in listed and (n + 1) % step == 0]
    if mixtures and reader.entries.get("num_experts", 512) != 0:
        raise ConfigError(
            f"{reader.where}: layer {mixtures[0]} has experts beside a shared one with a gate, "
            "which are not supported in hybrids; only MLPs in all layers are (mlp_only_layers)."
        )
    return _build(reader, kv_heads=2)


def _recurrent_layers(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers are recurrences: as listed, else all but each fourth or nth."""
    types = reader.entries.get("layer_types")
    if types is None:
        interval = reader.size("full_attention_interval", 4)
        return [bool((number + 1) % interval) for number in range(depth)]
    return _listed_layers(reader, types, depth)


def _listed_layers(reader: ConfigReader, types: Any, depth: int) -> list[bool]:
    """Return which of the listed layers are recurrences."""
    listed = isinstance(types, list) and all(isinstance(one, str) for one in types)
    named = [OLDER_TYPES.get(one, one) for one in types] if listed else []
    if len(named) != depth or not all(one in LAYER_TYPES for one in named):
        raise ConfigError(
            f"{reader.where}: layer_types={types!r:.80} are not {' or '.join(LAYER_TYPES)} for "
            f"each of {depth} layers."
        )
    return [one == LAYER_TYPES[0] for one in named]


def _recurrent_heads(reader: ConfigReader) -> tuple[int, int]:
    """Return the heads of keys and of values of a recurrence."""
    keys = reader.size("linear_num_key_heads", 16)
    values = reader.size("linear_num_value_heads", 32)
    if values % keys:
        raise ConfigError(
            f"{reader.where}: linear_num_key_heads={keys} does not divide "
            f"linear_num_value_heads={values}."
        )
    return keys, values


def _inputs_apart(theirs: str, own: str, _reader: ConfigReader) -> list[TensorMapping]:
    gates = f"{own}.recurrence.gates"
    qkv = tuple(f"{own}.{name}_proj" for name in "qkv")
    return [
        *linear(f"{theirs}.in_proj_qkv", qkv, bias=None),
        *linear(f"{theirs}.in_proj_a", f"{gates}.decay_proj", bias=None),
        *linear(f"{theirs}.in_proj_b", f"{gates}.beta_proj", bias=None),
        *linear(f"{theirs}.in_proj_z", f"{own}.gate_proj", bias=None),
    ]


def _inputs_by_key(theirs: str, own: str, reader: ConfigReader) -> list[TensorMapping]:
    """Map tensors that have all parts of the first key, of the second, ..."""
    keys, _ = _recurrent_heads(reader)
    wide = tuple(f"{own}.{name}_proj" for name in ("q", "k", "v", "gate"))
    gates = tuple(f"{own}.recurrence.gates.{name}_proj" for name in ("beta", "decay"))
    mappings = [
        *linear(f"{theirs}.in_proj_qkvz", wide, bias=None),
        *linear(f"{theirs}.in_proj_ba", gates, bias=None),
    ]
    return [replace(one, groups=keys) for one in mappings]


def _map_recurrent(theirs: str, own: str, spec: AttentionSpec) -> list[TensorMapping]:
    taps, channels = spec.kernel.convolution, spec.kernel.taps(spec)
    gates = f"{own}.recurrence.gates"
    return [
        TensorMapping(
            theirs=f"{theirs}.conv1d.weight",
            ours=(f"{own}.recurrence.convolution",),
            shape=(channels, 1, taps),
        ),
        TensorMapping(theirs=f"{theirs}.dt_bias", ours=(f"{gates}.step_bias",)),
        TensorMapping(theirs=f"{theirs}.A_log", ours=(f"{gates}.log_rate",)),
        *norm(f"{theirs}.norm", f"{own}.head_norm", bias=False),
        *linear(f"{theirs}.out_proj", f"{own}.o_proj", bias=None),
    ]


def _map_full(theirs: str, own: str, spec: AttentionSpec) -> list[TensorMapping]:
    bias = True if spec.bias else None
    packed = linear(f"{theirs}.q_proj", (f"{own}.q_proj", f"{own}.gate_proj"), bias=bias)
    mappings = [replace(one, groups=spec.num_heads) for one in packed]
    for name in "kvo":
        mappings += linear(f"{theirs}.{name}_proj", f"{own}.{name}_proj", bias=bias)
    for name in "qk":
        mappings += _centred(f"{theirs}.{name}_norm", f"{own}.{name}_norm")
    return mappings


def _centred(theirs: str, ours: str) -> list[TensorMapping]:
    """Map an RMS norm whose stored gains are 0 where they change nothing."""
    return [replace(one, offset=1.0) for one in norm(theirs, ours, bias=False)]


def _mappings(lm: LM, reader: ConfigReader, *, inputs: Inputs) -> list[TensorMapping]:
    mappings = head_and_tokens("model.embed_tokens.weight", lm)
    mappings += _centred("model.norm", "norm")
    for number, spec in enumerate(lm.specs):
        theirs, ours = f"model.layers.{number}", f"blocks.{number}"
        own = f"{ours}.attention"
        mappings += _centred(f"{theirs}.input_layernorm", f"{ours}.attention_norm")
        mappings += _centred(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm")
        mappings += gated(f"{theirs}.mlp", f"{ours}.mlp", bias=None)
        if spec.kernel.recurrent:
            mappings += inputs(f"{theirs}.linear_attn", own, reader)
            mappings += _map_recurrent(f"{theirs}.linear_attn", own, spec)
        else:
            mappings += _map_full(f"{theirs}.self_attn", own, spec)
    return mappings


QWEN3_5 = Architecture(
    model_type="qwen3_5_text",
    class_name="Qwen3_5ForCausalLM",
    bare_name="Qwen3_5TextModel",
    build=partial(_build, kv_heads=4),
    mappings=partial(_mappings, inputs=_inputs_apart),
    prefix="model.",
    nested="model.language_model.",
    derived=(".rotary_emb.inv_freq",),
)
QWEN3_NEXT = Architecture(
    model_type="qwen3_next",
    class_name="Qwen3NextForCausalLM",
    bare_name="Qwen3NextModel",
    build=_build_next,
    mappings=partial(_mappings, inputs=_inputs_by_key),
    prefix="model.",
    derived=(".rotary_emb.inv_freq",),
)


def _build_granite(reader: ConfigReader) -> LM:
    """Return a model of Mamba-2 layers, a few of attention, and an MLP in each."""
    reader.one_of("hidden_act", "silu")
    if reader.entries.get("num_local_experts", 8) != 0:
        raise ConfigError(
            f"{reader.where}: num_local_experts={reader.entries.get('num_local_experts', 8)!r:.40} "
            "are experts beside an MLP, which are not supported in hybrids; only 0 are, as in the "
            "dense models."
        )
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    depth = reader.depth("num_hidden_layers")
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=depth,
        mlp_width=reader.size("shared_intermediate_size", 1024),
        activation="swiglu",
        norm="rms",
        eps=reader.number("rms_norm_eps", 1e-6),
        positions="none",
        bias=False,
        tied=reader.flag("tie_word_embeddings"),
    )
    head_dim = reader.size("head_dim", width // heads)
    rotates = reader.one_of("position_embedding_type", None, "nope", "rope") == "rope"
    full = AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=reader.size("num_key_value_heads", heads),
        head_dim=head_dim,
        pattern=Causal(),
        position=read_rope(reader, head_dim) if rotates else NoPosition(),
        bias=reader.flag("attention_bias"),
        scale=granite_scale(reader),
    )
    types = reader.entries.get("layer_types")
    layers = [True] * depth if types is None else _listed_layers(reader, types, depth)
    recurrent = _mamba(reader, width, config.eps)
    return config.build([recurrent if one else full for one in layers], device="meta")


def _mamba(reader: ConfigReader, width: int, eps: float) -> AttentionSpec:
    """Return a layer of Mamba-2: C, B and x are queries, keys and values."""
    reader.one_of("mamba_proj_bias", False)
    limit = reader.entries.get("time_step_limit")
    if limit not in UNLIMITED:
        raise ConfigError(
            f"{reader.where}: time_step_limit={limit!r:.60} is not supported; only steps from 0 to "
            "Infinity are."
        )
    values = reader.size("mamba_n_heads", 128)
    joined = reader.size("mamba_expand", 2) * width
    if joined % values or reader.entries.get("mamba_d_head", "auto") not in (
        None,
        "auto",
        joined // values,
    ):
        raise ConfigError(
            f"{reader.where}: mamba_n_heads={values} of mamba_d_head="
            f"{reader.entries.get('mamba_d_head')!r:.40} are not the mamba_expand * hidden_size = "
            f"{joined} features that all heads have."
        )
    groups = reader.size("mamba_n_groups", 1)
    return AttentionSpec(
        d_model=width,
        num_heads=values,
        head_dim=reader.size("mamba_d_state", 256),
        pattern=Causal(),
        encoder=MultiValue(groups=groups, value_dim=joined // values),
        kernel=Decayed(
            per="token",
            convolution=reader.size("mamba_d_conv", 4),
            convolution_bias=reader.flag("mamba_conv_bias", default=True),
            skip=True,
        ),
        combine=NormedGate(groups=groups, eps=eps),
        bias=False,
        scale=1.0,
    )


def _map_mamba(theirs: str, own: str, spec: AttentionSpec) -> list[TensorMapping]:
    """Map a layer whose x, B and C stand in the order of values, keys and queries."""
    kernel, gates = spec.kernel, f"{own}.recurrence.gates"
    inputs = tuple(f"{own}.{name}_proj" for name in ("gate", "v", "k", "q"))
    keys, values = spec.widths.q, spec.widths.o
    rows = (*range(values + keys, values + 2 * keys), *range(values, values + keys), *range(values))
    mappings = [
        *linear(f"{theirs}.in_proj", (*inputs, f"{gates}.decay_proj"), bias=None),
        TensorMapping(
            theirs=f"{theirs}.conv1d.weight",
            ours=(f"{own}.recurrence.convolution",),
            shape=(len(rows), 1, kernel.convolution),
            order=rows,
        ),
        TensorMapping(theirs=f"{theirs}.dt_bias", ours=(f"{gates}.step_bias",)),
        TensorMapping(theirs=f"{theirs}.A_log", ours=(f"{gates}.log_rate",)),
        TensorMapping(theirs=f"{theirs}.D", ours=(f"{own}.recurrence.skip",)),
        *norm(f"{theirs}.norm", f"{own}.gated_norm", bias=False),
        *linear(f"{theirs}.out_proj", f"{own}.o_proj", bias=None),
    ]
    if kernel.convolution_bias:
        ours = (f"{own}.recurrence.convolution_bias",)
        mappings.append(TensorMapping(theirs=f"{theirs}.conv1d.bias", ours=ours, order=rows))
    return mappings


def _map_granite(lm: LM, reader: ConfigReader) -> list[TensorMapping]:
    mappings = head_and_tokens("model.embed_tokens.weight", lm)
    mappings += norm("model.norm", "norm", bias=False)
    for number, spec in enumerate(lm.specs):
        theirs, ours = f"model.layers.{number}", f"blocks.{number}"
        own, mlp = f"{ours}.attention", f"{theirs}.shared_mlp"
        mappings += norm(f"{theirs}.input_layernorm", f"{ours}.attention_norm", bias=False)
        mappings += norm(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm", bias=False)
        both = (f"{ours}.mlp.gate", f"{ours}.mlp.up")
        mappings += linear(f"{mlp}.input_linear", both, bias=None)
        mappings += linear(f"{mlp}.output_linear", f"{ours}.mlp.down", bias=None)
        if spec.kernel.recurrent:
            mappings += _map_mamba(f"{theirs}.mamba", own, spec)
            continue
        for name in "qkvo":
            bias = True if spec.bias else None
            mappings += linear(f"{theirs}.self_attn.{name}_proj", f"{own}.{name}_proj", bias=bias)
    by = granite_multipliers(reader)
    return [multiplied(one, lm, by) for one in mappings]


GRANITE_HYBRID = Architecture(
    model_type="granitemoehybrid",
    class_name="GraniteMoeHybridForCausalLM",
    bare_name="GraniteMoeHybridModel",
    build=_build_granite,
    mappings=_map_granite,
    prefix="model.",
    derived=(".rotary_emb.inv_freq",),
)
