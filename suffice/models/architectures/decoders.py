"""Decoders of transformers in both directions: GPT-2, GPT-NeoX, Phi, and Llama's relatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from suffice.encoders import HeadLayerNorm, HeadRMS, NoNorm, Norm, ProjectionRMS
from suffice.errors import ConfigError
from suffice.kernels import Softmax
from suffice.models.architectures.architecture import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    SIZES,
    Architecture,
    ConfigReader,
    GGUFForm,
    Row,
    Specs,
    TensorMapping,
    map_rows,
    read_sizes,
    write_sizes,
)
from suffice.models.architectures.experts import AMONG_MLPS, GPT_OSS, MIXTRAL, ExpertsFormat
from suffice.models.architectures.layer_types import (
    COHERE2_WINDOWS,
    EVERY_SECOND,
    EVERY_SIXTH,
    LAYER_TYPES,
    Windows,
    all_rotary,
    late_layers,
    listed_rotary,
    rotary_by_theta,
    rotary_in_windows,
    sliding_window,
)
from suffice.models.architectures.rope import (
    longest_text,
    read_rope,
    read_ropes,
    rope_parameters,
    rotary_of,
)
from suffice.models.lm import LM, LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition, Rope
from suffice.spec import AttentionSpec


def block_rows(theirs: str, ours: str, names: str) -> list[Row]:
    """Return rows of a block from words "theirs:ours", such as "o_proj:o_proj"."""
    pairs = (word.split(":") for word in names.split())
    return [(f"{theirs}.{their_name}", f"{ours}.{our_name}") for their_name, our_name in pairs]


QKV = tuple(f"blocks.*.attention.{name}_proj" for name in "qkv")


GPT2_SIZES = {
    "vocab_size": "vocabulary_size",
    "n_positions": "length",
    "n_embd": "d_model",
    "n_layer": "depth",
    "n_inner": "mlp_width",
}


def _read_gpt2(reader: ConfigReader) -> tuple[LMConfig, Specs]:
    heads, width = reader.heads("n_head", "n_embd")
    reader.one_of("add_cross_attention", False)
    reader.one_of("is_causal", True)
    config = LMConfig(
        **read_sizes(reader, GPT2_SIZES, mlp_width=4 * width),
        activation=ACTIVATIONS[reader.one_of("activation_function", *ACTIVATIONS)],
        eps=reader.number("layer_norm_epsilon", 1e-5),
        tied=reader.flag("tie_word_embeddings", default=True),
    )
    spec = AttentionSpec(d_model=width, num_heads=heads, pattern=Causal())
    if not reader.flag("scale_attn_weights", default=True):
        spec = replace(spec, scale=1.0)
    if not reader.flag("scale_attn_by_inverse_layer_idx"):
        return config, spec
    depths = range(1, config.depth + 1)
    return config, [replace(spec, scale=spec.score_scale / depth) for depth in depths]


def _write_gpt2(lm: LM) -> dict[str, Any]:
    config = lm.config
    return write_sizes(config, GPT2_SIZES) | {
        "n_head": lm.specs[0].num_heads,
        "activation_function": ACTIVATION_NAMES.get(config.activation),
        "layer_norm_epsilon": config.eps,
        "tie_word_embeddings": config.tied,
    }


GPT2_ROWS: list[Row] = [
    ("transformer.wte", "embedding.tokens"),
    ("lm_head", "head"),
    ("transformer.wpe", "embedding.positions"),
    ("transformer.ln_f", "norm"),
    *block_rows("transformer.h.*", "blocks.*", "ln_1:attention_norm ln_2:mlp_norm"),
    ("transformer.h.*.attn.c_attn", QKV),
    ("transformer.h.*.attn.c_proj", "blocks.*.attention.o_proj"),
    *block_rows("transformer.h.*.mlp", "blocks.*.mlp", "c_fc:up c_proj:down"),
]


def _map_gpt2(lm: LM, _reader: ConfigReader) -> list[TensorMapping]:
    """Map maps, which are stored with inputs first."""
    return [
        replace(one, transposed=".c_" in one.theirs and one.theirs.endswith(".weight"))
        for one in map_rows(GPT2_ROWS, lm)
    ]


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    bare_name="GPT2Model",
    ties=True,
    size_names=GPT2_SIZES,
    gguf=(GGUFForm(name="gpt2", layout="", fused=True),),
    sizes=_read_gpt2,
    entries=_write_gpt2,
    mappings=_map_gpt2,
    prefix="transformer.",
    derived=(".attn.bias", ".attn.masked_bias"),
)


def _write_rope(lm: LM, windowed: bool | None = None) -> dict[str, Any]:
    """Return the rotary entry of the first layer that rotates; `windowed` chooses among layers."""
    chosen = [
        rotary_of(spec) for spec in lm.specs if windowed in (None, sliding_window(spec) is not None)
    ]
    rope = next((one for one in chosen if one is not None), Rope())
    return rope_parameters(rope, lm.specs[0].head_width, lm.config.length)


GPT_NEOX_ROWS: list[Row] = [
    ("gpt_neox.embed_in", "embedding.tokens"),
    ("embed_out", "head"),
    ("gpt_neox.final_layer_norm", "norm"),
    *block_rows(
        "gpt_neox.layers.*",
        "blocks.*",
        "input_layernorm:attention_norm post_attention_layernorm:mlp_norm "
        "attention.dense:attention.o_proj mlp.dense_h_to_4h:mlp.up mlp.dense_4h_to_h:mlp.down",
    ),
    ("gpt_neox.layers.*.attention.query_key_value", QKV),
]


PHI_ROWS: list[Row] = [
    ("model.embed_tokens", "embedding.tokens"),
    ("lm_head", "head"),
    ("model.final_layernorm", "norm"),
    *block_rows(
        "model.layers.*",
        "blocks.*",
        "input_layernorm:attention_norm input_layernorm:mlp_norm self_attn.q_proj:attention.q_proj "
        "self_attn.k_proj:attention.k_proj self_attn.v_proj:attention.v_proj "
        "self_attn.dense:attention.o_proj mlp.fc1:mlp.up mlp.fc2:mlp.down",
    ),
]


@dataclass(frozen=True, kw_only=True)
class _Multipliers:
    """Constants of a model's forward pass, which are multiplied into our weights."""

    embedding: float = 1.0
    residual: float = 1.0  # of what an attention or an MLP adds
    logits: float = 1.0


def _granite_multipliers(reader: ConfigReader) -> _Multipliers:
    names = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    embedding, residual, scaling = (reader.positive(name, 1.0) for name in names)
    return _Multipliers(embedding=embedding, residual=residual, logits=1.0 / scaling)


def _gemma_multipliers(reader: ConfigReader) -> _Multipliers:
    return _Multipliers(embedding=math.sqrt(reader.size("hidden_size")))


def _cohere_multipliers(reader: ConfigReader) -> _Multipliers:
    return _Multipliers(logits=reader.positive("logit_scale", 0.0625))


NORMS = {
    "pre": "input_layernorm:attention_norm post_attention_layernorm:mlp_norm",
    "parallel": "input_layernorm:attention_norm input_layernorm:mlp_norm",
    "out": "post_attention_layernorm:attention_out_norm post_feedforward_layernorm:mlp_out_norm",
    "both": "input_layernorm:attention_norm post_attention_layernorm:attention_out_norm "
    "pre_feedforward_layernorm:mlp_norm post_feedforward_layernorm:mlp_out_norm",
}
"""The norms of a block, theirs and ours, by how it adds its branches."""
BODY_ROWS: list[Row] = [
    ("model.embed_tokens", "embedding.tokens"),
    ("lm_head", "head"),
    ("model.norm", "norm"),
]
MLP_ROWS = block_rows(
    "model.layers.*.mlp", "blocks.*.mlp", "gate_proj:gate up_proj:up down_proj:down"
)
OUTPUT_ROWS = block_rows(
    "model.layers.*.self_attn",
    "blocks.*.attention",
    "o_proj:o_proj q_norm:q_norm k_norm:k_norm q_norm:q_norm.norm k_norm:k_norm.norm sinks:sinks",
)
QKV_ROWS = block_rows(
    "model.layers.*.self_attn",
    "blocks.*.attention",
    "q_proj:q_proj k_proj:k_proj v_proj:v_proj",
)
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
PACKED_ROWS: list[Row] = [
    ("model.layers.*.self_attn.qkv_proj", QKV),
    ("model.layers.*.mlp.gate_up_proj", ("blocks.*.mlp.gate", "blocks.*.mlp.up")),
    ("model.layers.*.mlp.down_proj", "blocks.*.mlp.down"),
]


@dataclass(frozen=True, kw_only=True)
class _LlamaVariant:
    """Differences of an architecture from Llama's."""

    qkv_bias: str | bool = "attention_bias"  # whether there is one, or the entry that says so
    o_bias: str | bool = "attention_bias"
    mlp_bias: str | bool = "mlp_bias"
    norm: str = "rms"  # "rms" or "layer"
    norm_bias: bool = True  # of layer norms
    parallel: str | bool = False  # whether the MLP reads what the attention reads, or the entry
    eps: str = "rms_norm_eps"  # entry with the eps of the norms
    layout: str = "half"  # of rotary pairs
    packed: bool = False  # whether q, k, v are one tensor, and gate and up another
    tied: bool = False  # default of tie_word_embeddings
    qk_norm: type[Norm] | None = None  # of queries and keys, with the eps of the other norms
    qk_norm_if: str = ""  # the entry that says whether they are normalised; "" = always
    qk_norm_parts: str = (
        ""  # a tensor of one head, by q or k and its number; "" = one for all heads
    )
    theta: float = 10_000.0  # default base of rotary positions
    share: float | None = None  # default share of a head's features that rotate; None: always all
    plain_rope: bool = False  # whether frequencies are written as they are alone
    rotary: Callable[[ConfigReader, int], list[bool]] = all_rotary  # which layers rotate
    flags_of_rotary: str = ""  # the entry that is written with them
    thetas: str = ""  # entry with a base for each layer
    sinks: bool = False  # whether a learned logit of each head belongs to no key
    windows: Windows | None = None
    fixed: tuple[tuple[str, object], ...] = ()  # entries and the only value that is supported
    gates: tuple[tuple[str, str], ...] = (("silu", "swiglu"),)  # of hidden_act; first the default
    head_dim: int | None = None  # default width of a head; None: an equal share
    wide_heads: bool = True  # whether heads of another width than an equal share are written
    divides: bool = False  # whether heads must divide the width all the same
    norm_offset: float = 0.0  # of the weights of all norms
    scale: tuple[str, float, float] | None = None  # entry, default and power of the scores' factor
    caps: tuple[float | None, float | None] | None = None  # defaults of the caps of scores, logits
    residual: str = "pre"  # see `LMConfig`
    local_theta: float | None = None  # default base in layers with windows; None: as in others
    activation: str = "hidden_act"  # entry with the activation of the gates
    kv_heads: int | None = None  # default number of key/value heads; None: that of heads
    multipliers: Callable[[ConfigReader], _Multipliers] = lambda _reader: _Multipliers()
    neutral: tuple[tuple[str, object], ...] = ()  # entries that are written with our weights
    experts: ExpertsFormat | None = None  # in the place of MLPs
    defaults: tuple[tuple[str, object], ...] = ()  # of entries that are absent, not null
    older: tuple[tuple[str, str], ...] = ()  # older names of entries, and the newer ones
    head_bias: bool = False
    grouped: bool = True  # whether several heads may share their keys and values
    rows: tuple[Row, ...] = ()  # of the tensors; () = Llama's

    def with_defaults(self, reader: ConfigReader) -> ConfigReader:
        """Return a reader of a configuration in which the class's defaults stand for the absent."""
        entries = reader.entries
        absent = {name: value for name, value in self.defaults if name not in entries}
        absent |= {newer: entries[name] for name, newer in self.older if name in entries}
        if entries.get("rope_scaling"):  # the older name of rope_parameters
            absent.pop("rope_parameters", None)
        return ConfigReader({**absent, **entries}, reader.where)

    def biases(self, reader: ConfigReader) -> tuple[bool, bool, bool]:
        """Return whether q, k and v, the output projection, and the MLP have biases."""
        fields = (self.qkv_bias, self.o_bias, self.mlp_bias)
        qkv, o, mlp = (reader.flag(one) if isinstance(one, str) else one for one in fields)
        return qkv, o, mlp

    def read_caps(self, reader: ConfigReader) -> list[float | None]:
        """Return the caps of scores and logits; an entry that is null means none."""
        if self.caps is None:
            return [None, None]
        return [
            None if reader.entries.get(name, cap) is None else reader.number(name, cap)
            for name, cap in zip(CAPS, self.caps, strict=True)
        ]

    def read_ropes(self, reader: ConfigReader, head_dim: int) -> tuple[Rope, ...]:
        """Return the rotary positions of layers without and with a window."""
        options = {"layout": self.layout, "share": self.share}
        if self.local_theta is None:
            rope = read_rope(reader, head_dim, theta=self.theta, **options)
            return rope, rope
        local = {
            "rope_scaling": None,  # which is that of the other layers
            "rope_theta": reader.number("rope_local_base_freq", self.local_theta),
        }
        whole = {"rope_theta": reader.number("rope_theta", self.theta)}
        return read_ropes(reader, head_dim, whole, local, **options)

    def read_scale(self, reader: ConfigReader) -> float | None:
        """Return the factor of the scores; None means the usual one."""
        if self.scale is None:
            return None
        entry, default, power = self.scale
        return reader.positive(entry, default) ** power


def _read_llama(reader: ConfigReader, *, variant: _LlamaVariant) -> tuple[LMConfig, Specs]:
    reader, gates = variant.with_defaults(reader), dict(variant.gates)
    reader.one_of("is_causal", True)
    for name, legal in variant.fixed:
        reader.one_of(name, legal)
    width, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    if width % heads and variant.head_dim is None and reader.entries.get("head_dim") is None:
        raise ConfigError(
            f"{reader.where}: num_attention_heads={heads} does not divide hidden_size={width}, and "
            "there is no head_dim."
        )
    head_dim = reader.size("head_dim", variant.head_dim or width // heads)
    if not variant.grouped:
        reader.one_of("head_dim", width // heads)
    qkv_bias, o_bias, mlp_bias = variant.biases(reader)
    score_cap, logit_cap = variant.read_caps(reader)
    normed = not variant.qk_norm_if or reader.flag(variant.qk_norm_if)
    parallel = variant.parallel
    parallel = reader.flag(parallel) if isinstance(parallel, str) else parallel
    whole, local = variant.read_ropes(reader, head_dim)
    experts = None if variant.experts is None else variant.experts.read(reader)
    sizes = read_sizes(reader, SIZES)
    if experts is not None and not experts.dense:
        sizes["mlp_width"] = experts.width
    config = LMConfig(
        **sizes,
        length=longest_text(reader),
        activation=gates[reader.one_of(variant.activation, *gates)],
        norm=variant.norm,
        residual="parallel" if parallel else variant.residual,
        logit_cap=logit_cap,
        eps=reader.number(variant.eps),
        positions="none",
        bias=(variant.norm == "layer" and variant.norm_bias) or mlp_bias,
        tied=reader.flag("tie_word_embeddings", default=variant.tied),
        head_bias=variant.head_bias,
        experts=experts,
    )
    # null means the number of heads; an entry that is missing, the default of their class
    null = "num_key_value_heads" in reader.entries
    absent = heads if null else variant.kv_heads or heads
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=reader.size("num_key_value_heads", absent),
        head_dim=None if head_dim * heads == width else head_dim,
        pattern=Causal(),
        norm=variant.qk_norm(config.eps) if variant.qk_norm and normed else NoNorm(),
        kernel=Softmax(cap=score_cap, sink=variant.sinks),
        bias=qkv_bias or o_bias,
        scale=variant.read_scale(reader),
    )
    rotary = variant.rotary(reader, config.depth)
    windows = [None] * config.depth
    if variant.windows is not None:
        windows = variant.windows.read(reader, rotary)
    thetas = reader.entries.get(variant.thetas) or [None] * config.depth
    specs = []
    for size, rotates, theta in zip(windows, rotary, thetas, strict=True):
        rope = whole if size is None else local
        rope = rope if theta is None else replace(rope, theta=float(theta or rope.theta))
        pattern = Causal() if size is None else Window(size) & Causal()
        specs.append(replace(spec, pattern=pattern, position=rope if rotates else NoPosition()))
    return config, specs


def _write_llama(lm: LM, *, variant: _LlamaVariant) -> dict[str, Any]:
    config, first = lm.config, lm.specs[0]
    if variant.divides and config.d_model % first.num_heads:
        raise ConfigError(f"num_heads={first.num_heads} does not divide d_model={config.d_model}")
    biased = any(spec.bias for spec in lm.specs)
    gates = {ours: theirs for theirs, ours in reversed(variant.gates)}
    written = {
        variant.qkv_bias: biased,
        variant.o_bias: biased,
        variant.mlp_bias: config.bias,
        variant.parallel: config.residual == "parallel",
        variant.qk_norm_if: any(spec.norm.norms for spec in lm.specs),
        variant.activation: gates.get(config.activation),
        variant.eps: config.eps,
        "max_position_embeddings": config.length,
        "num_attention_heads": first.num_heads,
        "tie_word_embeddings": config.tied,
        variant.flags_of_rotary: [int(rotary_of(spec) is not None) for spec in lm.specs],
        "head_dim" if variant.wide_heads else "": first.head_width,
        "" if variant.scale is None else variant.scale[0]: _whole_scalar(first),
    }
    entries = {name: value for name, value in written.items() if name and isinstance(name, str)}
    entries |= write_sizes(config, SIZES) | _write_ropes(lm, variant) | dict(variant.neutral)
    if variant.grouped:
        entries["num_key_value_heads"] = math.lcm(*(spec.kv_heads for spec in lm.specs))
    if variant.windows is not None:
        entries |= variant.windows.write(list(map(sliding_window, lm.specs)), config.length)
    if variant.caps is not None:
        caps = zip(CAPS, (getattr(first.kernel, "cap", None), config.logit_cap), strict=True)
        entries |= {name: cap for name, cap in caps if (name, None) not in variant.fixed}
    if variant.experts is not None and config.experts is not None:
        entries |= variant.experts.write(config.experts)
    return entries


def _write_ropes(lm: LM, variant: _LlamaVariant) -> dict[str, Any]:
    sliding = (None,) if variant.local_theta is None else (False, True)
    ropes = [_write_rope(lm, windowed) for windowed in sliding]
    if variant.share is None:
        ropes = [rope | {"partial_rotary_factor": 1.0} for rope in ropes]
    if variant.plain_rope:
        ropes = [rope | {"rope_type": "default"} for rope in ropes]
    by_type = dict(zip(LAYER_TYPES, ropes, strict=False))
    return {"rope_parameters": ropes[0] if variant.local_theta is None else by_type}


def _whole_scalar(spec: AttentionSpec) -> int:
    """Return the whole number whose root divides the products, or the usual one with gains."""
    scalar = max(round(spec.score_scale**-2), 1)
    return scalar if scalar**-0.5 == spec.score_scale else spec.head_width


def _map_llama(lm: LM, reader: ConfigReader, *, variant: _LlamaVariant) -> list[TensorMapping]:
    reader = variant.with_defaults(reader)
    parts = (("attention.q_proj", "attention.k_proj", "attention.v_proj"), ("attention.o_proj",))
    parts = (*parts, ("mlp.gate", "mlp.up", "mlp.down"))
    without_bias = [
        part
        for names, biased in zip(parts, variant.biases(reader), strict=True)
        for part in names
        if not biased
    ]
    norms = block_rows("model.layers.*", "blocks.*", NORMS[lm.config.residual])
    rows = [
        *BODY_ROWS,
        *norms,
        *OUTPUT_ROWS,
        *(PACKED_ROWS if variant.packed else [*QKV_ROWS, *MLP_ROWS]),
    ]
    rows = [*variant.rows] or rows
    if variant.experts is not None:
        rows += variant.experts.rows
    mappings = map_rows(rows, lm, without_bias=tuple(without_bias))
    if variant.experts is not None and variant.experts.mappings is not None:
        mappings += variant.experts.mappings(lm)
    if variant.qk_norm_parts:
        mappings = [one for mapping in mappings for one in _by_head(mapping, lm, variant)]
    return [_multiplied(one, lm, variant, variant.multipliers(reader)) for one in mappings]


def _by_head(mapping: TensorMapping, lm: LM, variant: _LlamaVariant) -> list[TensorMapping]:
    """Return the mappings of each head's gains for that of all; others as they are."""
    block, _, part = mapping.ours[0].rpartition(".attention.")
    if part not in ("q_norm.weight", "k_norm.weight"):
        return [mapping]
    spec = lm.specs[int(block.removeprefix("blocks."))]
    theirs = mapping.theirs.removesuffix(part)
    return [
        replace(
            mapping,
            theirs=f"{theirs}{variant.qk_norm_parts.format(part[0], head)}.weight",
            row=head,
        )
        for head in range(spec.num_heads if part[0] == "q" else spec.kv_heads)
    ]


def _multiplied(
    mapping: TensorMapping, lm: LM, variant: _LlamaVariant, by: _Multipliers
) -> TensorMapping:
    """Return a mapping whose tensor of ours has the constants of the forward pass in it."""
    ours = mapping.ours[0]
    factor = offset = 0.0
    if "norm" in ours and ours.endswith(".weight"):
        offset = variant.norm_offset
    if ours.startswith("embedding."):
        factor = by.embedding
    elif ".o_proj." in ours or ".mlp.down." in ours:
        factor = by.residual
    elif ours.startswith("head."):
        factor = by.logits
    elif ours.startswith("norm.") and lm.head is None:  # the head is the embedding
        factor = by.logits / by.embedding
    heads = lm.specs[0].num_heads
    groups = heads if ".query_key_value." in mapping.theirs else mapping.groups
    return replace(mapping, factor=factor or 1.0, offset=offset, groups=groups)


def _llama(
    model_type: str,
    class_name: str,
    bare_name: str = "",
    *,
    written: bool = True,
    head: str = "lm_head.weight",
    prefix: str = "model.",
    derived: tuple[str, ...] = (),
    gguf: tuple[GGUFForm, ...] = (),
    **differences: Any,
) -> Architecture:
    """Return a relative of Llama; those that others hold as well are not written."""
    variant = _LlamaVariant(**differences)
    return Architecture(
        model_type=model_type,
        class_name=class_name,
        bare_name=bare_name or class_name.replace("ForCausalLM", "Model"),
        ties=variant.tied,
        sizes=partial(_read_llama, variant=variant),
        entries=partial(_write_llama, variant=variant) if written else None,
        mappings=partial(_map_llama, variant=variant),
        head=head,
        prefix=prefix,
        gguf=gguf,
        derived=(".rotary_emb.inv_freq", *derived),
    )


NO_BIASES: dict[str, Any] = {"qkv_bias": False, "o_bias": False, "mlp_bias": False}
_ONE_WAY = ("use_bidirectional_attention", False)
_GEMMA: dict[str, Any] = {
    "mlp_bias": False,
    "tied": True,
    "gates": (("gelu_pytorch_tanh", "geglu_tanh"), ("gelu", "geglu")),
    "head_dim": 256,
    "norm_offset": 1.0,
    "multipliers": _gemma_multipliers,
}
_NEWER_GEMMA: dict[str, Any] = _GEMMA | {
    "activation": "hidden_activation",
    "scale": ("query_pre_attn_scalar", 256.0, -0.5),
    "residual": "both",
    "kv_heads": 4,
    "divides": True,
}
_COHERE: dict[str, Any] = {
    "mlp_bias": False,
    "norm": "layer",
    "norm_bias": False,
    "eps": "layer_norm_eps",
    "layout": "interleaved",
    "tied": True,
    "theta": 500_000.0,
    "parallel": True,
    "multipliers": _cohere_multipliers,
    "neutral": (("logit_scale", 1.0),),
    "wide_heads": False,
}
_GRANITE: dict[str, Any] = {
    "written": False,
    "scale": ("attention_multiplier", 1.0, 1.0),
    "multipliers": _granite_multipliers,
}
_GELU: dict[str, Any] = {
    "norm": "layer",
    "mlp_bias": True,
    "eps": "layer_norm_eps",
    "wide_heads": False,
}
_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

LLAMAS = (
    _llama(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        **_GELU,
        head="embed_out.weight",
        prefix="gpt_neox.",
        derived=(".attention.bias", ".attention.masked_bias"),
        rows=tuple(GPT_NEOX_ROWS),
        gates=(("gelu", "gelu"), *ACTIVATIONS.items()),
        parallel="use_parallel_residual",
        share=0.25,
        grouped=False,
        defaults=(
            ("attention_bias", True),
            ("use_parallel_residual", True),
            ("layer_norm_eps", 1e-5),
        ),
        older=(("rotary_emb_base", "rope_theta"), ("rotary_pct", "partial_rotary_factor")),
    ),
    _llama(
        "phi",
        "PhiForCausalLM",
        **_GELU,
        rows=tuple(PHI_ROWS),
        gates=tuple(ACTIVATIONS.items()),
        parallel=True,
        share=0.5,
        qkv_bias=True,
        o_bias=True,
        head_bias=True,
        fixed=(("qk_layernorm", False), ("tie_word_embeddings", False)),
        defaults=(("layer_norm_eps", 1e-5),),
    ),
    _llama(
        "llama",
        "LlamaForCausalLM",
        gguf=(
            GGUFForm(name="llama", layout="interleaved"),
            GGUFForm(name="deci", layout="interleaved"),  # whose layers differ in their heads
            GGUFForm(name="granite_swa", layout="interleaved", by_layer=True),
        ),
    ),
    _llama("mistral", "MistralForCausalLM", **NO_BIASES, kv_heads=8, windows=Windows(default=4096)),
    _llama(
        "qwen2",
        "Qwen2ForCausalLM",
        gguf=(GGUFForm(name="qwen2"),),
        **(NO_BIASES | {"qkv_bias": True}),
        written=False,
        kv_heads=32,
        windows=Windows(usual=late_layers, default=4096, switch=True),
    ),
    _llama(
        "qwen3",
        "Qwen3ForCausalLM",
        gguf=(GGUFForm(name="qwen3"),),
        mlp_bias=False,
        qk_norm=HeadRMS,
        kv_heads=32,
        windows=Windows(usual=late_layers, default=4096, switch=True),
    ),
    _llama(
        "smollm3",
        "SmolLM3ForCausalLM",
        gguf=(GGUFForm(name="smollm3", layout="interleaved"),),
        tied=True,
        kv_heads=4,
        theta=2_000_000.0,
        rotary=listed_rotary,
        flags_of_rotary="no_rope_layers",
        windows=Windows(usual=lambda _, rotary: [not one for one in rotary], switch=True),
    ),
    _llama("granite", "GraniteForCausalLM", **_GRANITE),
    _llama(
        "granite_swa",
        "GraniteSWAForCausalLM",
        **_GRANITE,
        tied=True,
        kv_heads=4,
        rotary=rotary_by_theta,
        thetas="layer_rope_theta",
        windows=Windows(
            usual=lambda _, rotary: [bool(n % 4) for n in range(len(rotary))], default=128
        ),
        sinks=True,
    ),
    _llama(
        "gemma",
        "GemmaForCausalLM",
        **_GEMMA,
        kv_heads=16,
        fixed=(("use_bidirectional_attention", None),),
    ),
    _llama(
        "gemma2",
        "Gemma2ForCausalLM",
        **_NEWER_GEMMA,
        caps=(50.0, 30.0),
        fixed=(_ONE_WAY,),
        windows=Windows(usual=EVERY_SECOND, default=4096),
    ),
    _llama(
        "gemma3_text",
        "Gemma3ForCausalLM",
        "Gemma3TextModel",
        **_NEWER_GEMMA,
        caps=(None, None),
        fixed=(_ONE_WAY, ("attn_logit_softcapping", None)),  # which its class ignores
        qk_norm=HeadRMS,
        theta=1_000_000.0,
        local_theta=10_000.0,
        windows=Windows(usual=EVERY_SIXTH, default=4096),
    ),
    _llama(
        "helium",
        "HeliumForCausalLM",
        written=False,
        kv_heads=20,
        o_bias=False,
        layout="interleaved",
        theta=100_000.0,
    ),
    _llama(
        "phi3",
        "Phi3ForCausalLM",
        gguf=(GGUFForm(name="phi3", fused=True, windowed=True),),
        **NO_BIASES,
        packed=True,
        share=1.0,
        plain_rope=True,
        windows=Windows(),
    ),
    _llama(
        "olmo2",
        "Olmo2ForCausalLM",
        gguf=(GGUFForm(name="olmo2", untied=True),),
        mlp_bias=False,
        qk_norm=ProjectionRMS,
        residual="out",
    ),
    _llama(
        "gpt_oss",
        "GptOssForCausalLM",
        written=False,
        mlp_bias=True,
        sinks=True,
        theta=150_000.0,
        head_dim=64,
        kv_heads=8,
        windows=Windows(usual=EVERY_SECOND, default=128),
        experts=GPT_OSS,
        defaults=(("attention_bias", True), ("rope_parameters", _GPT_OSS_YARN)),
    ),
    _llama(
        "mixtral",
        "MixtralForCausalLM",
        **NO_BIASES,
        kv_heads=8,
        theta=1_000_000.0,
        windows=Windows(),
        experts=MIXTRAL,
    ),
    _llama(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        mlp_bias=False,
        qk_norm=HeadRMS,
        kv_heads=4,
        windows=Windows(default=4096, switch=True),
        experts=AMONG_MLPS,
    ),
    _llama(
        "cohere", "CohereForCausalLM", **_COHERE, qk_norm=HeadLayerNorm, qk_norm_if="use_qk_norm"
    ),
    _llama(
        "cohere2",
        "Cohere2ForCausalLM",
        **_COHERE | {"theta": 10_000.0},
        rotary=rotary_in_windows,
        windows=COHERE2_WINDOWS,
    ),
    _llama(
        "stablelm",
        "StableLmForCausalLM",
        gguf=(GGUFForm(name="stablelm", untied=True),),
        **(NO_BIASES | {"qkv_bias": "use_qkv_bias"}),
        norm="layer",
        eps="layer_norm_eps",
        wide_heads=False,
        kv_heads=32,
        share=0.25,
        parallel="use_parallel_residual",
        qk_norm=HeadLayerNorm,
        qk_norm_if="qk_layernorm",
        qk_norm_parts="{}_layernorm.norms.{}",
    ),
)
"""Where a model fits several, it is written as the first."""
