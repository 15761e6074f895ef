"""Decoder models of transformers: GPT-2, and Llama with its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from suffice.convert.sources.architecture import (
    ACTIVATIONS,
    Architecture,
    ConfigReader,
    TensorMapping,
    linear,
    norm,
)
from suffice.convert.sources.experts import GPT_OSS, MIXTRAL, QWEN3_MOE, ExpertsFormat
from suffice.encoders import HeadLayerNorm, HeadRMS, NoNorm, Norm, ProjectionRMS
from suffice.errors import ConfigError
from suffice.kernels import Softmax
from suffice.models import LM, LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    PairScaling,
    Rope,
    YarnScaling,
)
from suffice.positions.rope import Scaling
from suffice.spec import AttentionSpec


def head_and_tokens(tokens: str, lm: LM, head: str = "lm_head.weight") -> list[TensorMapping]:
    """Map the vectors of tokens, and the head where it is not tied to them."""
    mappings = [TensorMapping(theirs=tokens, ours=("embedding.tokens.weight",))]
    if lm.head is not None:
        mappings.append(TensorMapping(theirs=head, ours=("head.weight",)))
    return mappings


def _build_gpt2(reader: ConfigReader) -> LM:
    heads, width = reader.heads("n_head", "n_embd")
    reader.one_of("add_cross_attention", False)
    reader.one_of("is_causal", True)
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=reader.size("n_positions"),
        d_model=width,
        depth=reader.depth("n_layer"),
        mlp_width=reader.size("n_inner", 4 * width),
        activation=ACTIVATIONS[reader.one_of("activation_function", *ACTIVATIONS)],
        eps=reader.number("layer_norm_epsilon", 1e-5),
        tied=reader.flag("tie_word_embeddings", default=True),
    )
    spec = AttentionSpec(d_model=width, num_heads=heads, pattern=Causal())
    if not reader.flag("scale_attn_weights", default=True):
        spec = replace(spec, scale=1.0)
    if not reader.flag("scale_attn_by_inverse_layer_idx"):
        return config.build(spec, device="meta")
    depths = range(1, config.depth + 1)
    specs = [replace(spec, scale=spec.score_scale / depth) for depth in depths]
    return config.build(specs, device="meta")


def _map_gpt2(lm: LM, _reader: ConfigReader) -> list[TensorMapping]:
    positions = "transformer.wpe.weight"
    mappings = [
        *head_and_tokens("transformer.wte.weight", lm),
        TensorMapping(theirs=positions, ours=("embedding.positions.weight",)),
        *norm("transformer.ln_f", "norm"),
    ]
    for number in range(len(lm.blocks)):
        theirs, ours = f"transformer.h.{number}", f"blocks.{number}"
        qkv = tuple(f"{ours}.attention.{name}_proj" for name in "qkv")
        mappings += norm(f"{theirs}.ln_1", f"{ours}.attention_norm")
        mappings += linear(f"{theirs}.attn.c_attn", qkv, transposed=True)
        mappings += linear(f"{theirs}.attn.c_proj", f"{ours}.attention.o_proj", transposed=True)
        mappings += norm(f"{theirs}.ln_2", f"{ours}.mlp_norm")
        mappings += linear(f"{theirs}.mlp.c_fc", f"{ours}.mlp.up", transposed=True)
        mappings += linear(f"{theirs}.mlp.c_proj", f"{ours}.mlp.down", transposed=True)
    return mappings


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    bare_name="GPT2Model",
    ties=True,
    build=_build_gpt2,
    mappings=_map_gpt2,
    prefix="transformer.",
    derived=(".attn.bias", ".attn.masked_bias"),
)


def _build_gpt_neox(reader: ConfigReader) -> LM:
    reader.one_of("is_causal", True)
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    reader.one_of("head_dim", width // heads)
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=reader.depth("num_hidden_layers"),
        mlp_width=reader.size("intermediate_size"),
        activation=ACTIVATIONS[reader.one_of("hidden_act", "gelu", *ACTIVATIONS)],
        residual="parallel" if reader.flag("use_parallel_residual", default=True) else "pre",
        eps=reader.number("layer_norm_eps", 1e-5),
        positions="none",
        tied=reader.flag("tie_word_embeddings"),
    )
    older = {
        "rope_theta": reader.number("rotary_emb_base", 10_000.0),
        "partial_rotary_factor": reader.number("rotary_pct", 0.25),
    }
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        pattern=Causal(),
        position=read_rope(ConfigReader(reader.entries | older, reader.where), width // heads),
        bias=reader.flag("attention_bias", default=True),
    )
    return config.build(spec, device="meta")


def _map_gpt_neox(lm: LM, _reader: ConfigReader) -> list[TensorMapping]:
    mappings = [
        *head_and_tokens("gpt_neox.embed_in.weight", lm, "embed_out.weight"),
        *norm("gpt_neox.final_layer_norm", "norm"),
    ]
    for number, spec in enumerate(lm.specs):
        theirs, ours = f"gpt_neox.layers.{number}", f"blocks.{number}"
        qkv = tuple(f"{ours}.attention.{name}_proj" for name in "qkv")
        bias = True if spec.bias else None
        mappings += norm(f"{theirs}.input_layernorm", f"{ours}.attention_norm")
        mappings += norm(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm")
        packed = linear(f"{theirs}.attention.query_key_value", qkv, bias=bias)
        mappings += [replace(one, groups=spec.num_heads) for one in packed]
        mappings += linear(f"{theirs}.attention.dense", f"{ours}.attention.o_proj", bias=bias)
        mappings += linear(f"{theirs}.mlp.dense_h_to_4h", f"{ours}.mlp.up")
        mappings += linear(f"{theirs}.mlp.dense_4h_to_h", f"{ours}.mlp.down")
    return mappings


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    class_name="GPTNeoXForCausalLM",
    bare_name="GPTNeoXModel",
    head="embed_out.weight",
    build=_build_gpt_neox,
    mappings=_map_gpt_neox,
    prefix="gpt_neox.",
    derived=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)


LAYER_TYPES = ("full_attention", "sliding_attention")
Windows = Callable[[ConfigReader, list[bool]], list[int | None]]
"""Gives the window of each layer, None = none, from which layers have rotary positions."""


def _no_windows(_reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
    return [None] * len(rotary)


def _equal_windows(
    reader: ConfigReader, rotary: list[bool], *, default: int | None = None
) -> list[int | None]:
    """Give every layer the same window; an entry that is null means none, not the default."""
    size = reader.entries.get("sliding_window", default)
    return [None if size is None else reader.size("sliding_window", default)] * len(rotary)


def _windows_if_used(reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
    """Give every layer the same window if use_sliding_window says so."""
    used = reader.flag("use_sliding_window")
    return _equal_windows(reader, rotary, default=4096) if used else [None] * len(rotary)


def _late_windows(reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
    """Give windows to the layers from max_window_layers on, unless layer_types lists them."""
    first = reader.entries.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ConfigError(f"{reader.where}: max_window_layers={first!r:.40} is no whole number.")
    return _listed_windows(reader, [number >= first for number in range(len(rotary))], default=4096)


def _windows_without_rope(reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
    """Give windows to the layers without rotary positions, unless layer_types lists them."""
    return _listed_windows(reader, [not rotates for rotates in rotary], default=None)


def _regular_windows(
    reader: ConfigReader,
    rotary: list[bool],
    *,
    period: int | None = None,
    default: int = 6,
    size: int = 4096,
) -> list[int | None]:
    """Give windows to all but each nth layer, unless layer_types lists them.

    `period` is n; None = that of sliding_window_pattern, or `default`. `size` is the window where
    there is no sliding_window.
    """
    every = reader.size("sliding_window_pattern", default) if period is None else period
    types = _layer_types(reader, [bool((number + 1) % every) for number in range(len(rotary))])
    if reader.entries.get("sliding_window", size) is None and LAYER_TYPES[1] in types:
        raise ConfigError(f"{reader.where}: sliding_window=None, and layers have windows.")
    size = reader.size("sliding_window", size)
    return [size if one == LAYER_TYPES[1] else None for one in types]


def _windows_but_every_fourth(reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
    """Give windows to all layers but the first of every four, unless layer_types lists them."""
    types = _layer_types(reader, [bool(number % 4) for number in range(len(rotary))])
    size = reader.size("sliding_window", 128)
    return [size if one == LAYER_TYPES[1] else None for one in types]


def _listed_windows(
    reader: ConfigReader, windowed: list[bool], *, default: int | None
) -> list[int | None]:
    types = _layer_types(reader, windowed)
    size = reader.entries.get("sliding_window", default)
    if not reader.flag("use_sliding_window") or size is None:
        if size is not None and LAYER_TYPES[1] in types and "layer_types" in reader.entries:
            raise ConfigError(
                f"{reader.where}: layer_types lists {LAYER_TYPES[1]} with sliding_window={size!r} "
                "beside use_sliding_window=false, which classes of transformers read in two ways; "
                "leave what is true."
            )
        return [None] * len(windowed)
    size = reader.size("sliding_window", default)
    return [size if one == LAYER_TYPES[1] else None for one in types]


def _layer_types(reader: ConfigReader, windowed: list[bool]) -> list[str]:
    """Return layer_types, or where there are none those of layers with and without windows."""
    depth = len(windowed)
    types = reader.entries.get("layer_types")
    if types is None:
        types = [LAYER_TYPES[one] for one in windowed]
    legal = isinstance(types, list) and all(one in LAYER_TYPES for one in types)
    if not legal or len(types) != depth:
        raise ConfigError(
            f"{reader.where}: layer_types={types!r:.80} are not {' or '.join(LAYER_TYPES)} for "
            f"each of {depth} layers."
        )
    return types


def _all_rotary(_reader: ConfigReader, depth: int) -> list[bool]:
    return [True] * depth


def _listed_rotary(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: as listed, else all but each fourth or nth."""
    flags = reader.entries.get("no_rope_layers")
    if flags is None:
        interval = reader.size("no_rope_layer_interval", 4)
        return [(number + 1) % interval != 0 for number in range(depth)]
    if not isinstance(flags, list) or len(flags) != depth:
        raise ConfigError(
            f"{reader.where}: no_rope_layers={flags!r:.80} is not for {depth} layers."
        )
    return [bool(flag) for flag in flags]


def _rotary_by_theta(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: those whose base is not 0."""
    thetas = reader.entries.get("layer_rope_theta")
    if thetas is None:
        return [True] * depth
    legal = isinstance(thetas, list) and all(type(one) in (int, float) for one in thetas)
    if not legal or len(thetas) != depth or min(thetas) < 0:
        raise ConfigError(
            f"{reader.where}: layer_rope_theta={thetas!r:.80} are not {depth} numbers, 0 or more."
        )
    return [bool(theta) for theta in thetas]


def _rotary_in_windows(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: those with a window, as in Cohere 2."""
    return [size is not None for size in _every_fourth_full(reader, [True] * depth)]


_every_fourth_full = partial(_regular_windows, default=4)


def rope_entries(reader: ConfigReader) -> tuple[ConfigReader, dict[str, Any]]:
    """Return a reader of all entries with those of the rotary positions, and these alone."""
    entries = reader.entries
    newer, older = entries.get("rope_parameters") or {}, entries.get("rope_scaling") or {}
    if newer and older and newer != older:
        raise ConfigError(
            f"{reader.where}: rope_parameters={newer!r:.80} and rope_scaling={older!r:.80} differ; "
            "leave the one that is true."
        )
    nested = newer or older
    if not isinstance(nested, dict) or any(isinstance(one, dict) for one in nested.values()):
        raise ConfigError(
            f"{reader.where}: rope_parameters={nested!r:.80} differ by layer type, which is not "
            "supported."
        )
    return ConfigReader({**entries, **nested}, reader.where), nested


def read_rope(
    reader: ConfigReader,
    head_dim: int,
    layout: str = "half",
    *,
    theta: float = 10_000.0,
    share: float | None = 1.0,
) -> Rope:
    """Return the rotary positions of a configuration, from rope_parameters or older entries."""
    rope, nested = rope_entries(reader)
    if share is None:
        share = rope.one_of("partial_rotary_factor", 1.0)
    share = rope.number("partial_rotary_factor", share)
    features, kind = int(head_dim * share), rope_type(nested)
    if features < 2 or features % 2:  # noqa: PLR2004
        raise ConfigError(
            f"{reader.where}: partial_rotary_factor={share} of head_dim={head_dim} are {features} "
            "features, and features rotate in pairs; give a factor of an even number of them."
        )
    return Rope(
        rope.number("rope_theta", theta),
        layout=layout,
        features=None if features == head_dim else features,
        scaling=_read_scaling(rope, kind),
        length=longest_text(reader) if kind in OTHER_BEYOND else None,
    )


def _read_ropes(reader: ConfigReader, head_dim: int, variant: _LlamaVariant) -> tuple[Rope, Rope]:
    """Return the rotary positions of layers without and with a window."""
    options = {"layout": variant.layout, "share": variant.share}
    if variant.local_theta is None:
        rope = read_rope(reader, head_dim, theta=variant.theta, **options)
        return rope, rope
    nested = reader.entries.get("rope_parameters") or {}
    if not isinstance(nested, dict) or not set(nested) <= set(LAYER_TYPES):
        raise ConfigError(
            f"{reader.where}: rope_parameters={nested!r:.80} are not given for "
            f"{' and '.join(LAYER_TYPES)}."
        )
    local = ConfigReader(
        {
            **reader.entries,
            "rope_parameters": nested.get(LAYER_TYPES[1]),
            "rope_scaling": None,  # which is that of the other layers
            "rope_theta": reader.number("rope_local_base_freq", variant.local_theta),
        },
        reader.where,
    )
    whole = ConfigReader(
        {**reader.entries, "rope_parameters": nested.get(LAYER_TYPES[0])}, reader.where
    )
    return (
        read_rope(whole, head_dim, theta=variant.theta, **options),
        read_rope(local, head_dim, **options),
    )


OTHER_BEYOND = ("dynamic", "longrope")  # scalings whose frequencies change with a text's length


def rope_type(nested: dict[str, Any]) -> object:
    """Return the name of a rotary scaling."""
    return nested.get("rope_type", nested.get("type", "default"))


def longest_text(reader: ConfigReader) -> int:
    """Return the longest text: with long and short factors that of the short ones."""
    nested = reader.entries.get("rope_parameters") or reader.entries.get("rope_scaling") or {}
    length = reader.size("max_position_embeddings")
    if isinstance(nested, dict) and rope_type(nested) == "longrope":
        rope = ConfigReader({**reader.entries, **nested}, reader.where)
        return min(length, rope.size("original_max_position_embeddings", length))
    return length


def _read_scaling(reader: ConfigReader, kind: object) -> Scaling | None:
    if kind in ("default", "dynamic"):
        return None  # dynamic: stretches nothing up to the length
    if kind == "longrope":
        return _read_pairs(reader)
    if kind == "linear":
        return LinearScaling(reader.number("factor"))
    length = reader.entries.get("max_position_embeddings")
    if kind == "llama3":
        return Llama3Scaling(
            reader.number("factor"),
            length=reader.size("original_max_position_embeddings", length),
            low=reader.number("low_freq_factor"),
            high=reader.number("high_freq_factor"),
        )
    if kind == "yarn":
        return YarnScaling(
            reader.number("factor"),
            length=reader.size("original_max_position_embeddings", length),
            fast=reader.number("beta_fast", 32.0),
            slow=reader.number("beta_slow", 1.0),
            attention_factor=_yarn_amplitude(reader),
            truncate=reader.flag("truncate", default=True),
        )
    raise ConfigError(
        f"{reader.where}: rotary scaling {kind!r:.40} is not known; default, dynamic, linear, "
        "llama3, longrope and yarn are."
    )


def _yarn_amplitude(reader: ConfigReader) -> float | None:
    """Return the factor of rotated queries and keys; None = the paper's."""
    if reader.entries.get("attention_factor") is not None:
        return reader.number("attention_factor")
    scales = yarn_mscales(reader)
    return None if scales is None else scales[0] / scales[1]


def yarn_mscales(reader: ConfigReader) -> tuple[float, float] | None:
    """Return what mscale and mscale_all_dim make of the factor of YaRN; None where both are absent.

    The quotient multiplies rotated queries and keys, and the square of the second the scores of
    DeepSeek's models.
    """
    names = ("mscale", "mscale_all_dim")
    given = [name for name in names if reader.entries.get(name) is not None]
    if not given:
        return None
    values = [reader.number(name, 0.0) for name in names]
    if min(values) <= 0.0:
        raise ConfigError(
            f"{reader.where}: mscale={values[0]} and mscale_all_dim={values[1]} are not supported; "
            "only both above 0 are, or neither."
        )
    growth = 0.1 * math.log(max(reader.number("factor"), 1.0))
    return values[0] * growth + 1.0, values[1] * growth + 1.0


def _read_pairs(reader: ConfigReader) -> Scaling:
    """Return the short factors, which a model has up to its original length."""
    factors = reader.entries.get("short_factor")
    if not isinstance(factors, list) or not all(type(one) in (int, float) for one in factors):
        raise ConfigError(f"{reader.where}: short_factor={factors!r:.60} are no numbers.")
    longest = reader.size("max_position_embeddings")
    original = reader.size("original_max_position_embeddings", longest)
    factor = reader.number("factor", longest / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    amplitude = reader.number("attention_factor", default)
    return PairScaling(tuple(map(float, factors)), attention_factor=amplitude)


@dataclass(frozen=True, kw_only=True)
class _Multipliers:
    """Constants of a model's forward pass, which are multiplied into our weights."""

    embedding: float = 1.0
    residual: float = 1.0  # of what an attention or an MLP adds
    logits: float = 1.0


def _granite_multipliers(reader: ConfigReader) -> _Multipliers:
    names = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
    embedding, residual, scaling = (reader.number(name, 1.0) for name in names)
    if min(embedding, residual, scaling) <= 0.0:
        raise ConfigError(f"{reader.where}: {', '.join(names)} are not all above 0.")
    return _Multipliers(embedding=embedding, residual=residual, logits=1.0 / scaling)


def _gemma_multipliers(reader: ConfigReader) -> _Multipliers:
    return _Multipliers(embedding=math.sqrt(reader.size("hidden_size")))


def _cohere_multipliers(reader: ConfigReader) -> _Multipliers:
    scale = reader.number("logit_scale", 0.0625)
    if scale <= 0.0:
        raise ConfigError(f"{reader.where}: logit_scale={scale} is not above 0.")
    return _Multipliers(logits=scale)


def _granite_scale(reader: ConfigReader) -> float | None:
    return reader.number("attention_multiplier", 1.0)


def _gemma_scale(reader: ConfigReader) -> float | None:
    scalar = reader.number("query_pre_attn_scalar", 256.0)
    if scalar <= 0.0:
        raise ConfigError(f"{reader.where}: query_pre_attn_scalar={scalar} is not above 0.")
    return scalar**-0.5


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
    share: float | None = None  # default share of a head's features that rotate; None = always all
    rotary: Callable[[ConfigReader, int], list[bool]] = _all_rotary
    thetas: str = ""  # entry with a base for each layer
    sinks: bool = False  # whether a learned logit of each head belongs to no key
    windows: Windows = _no_windows
    fixed: tuple[tuple[str, object], ...] = ()  # entries and the only value that is supported
    gates: tuple[tuple[str, str], ...] = (("silu", "swiglu"),)  # of hidden_act; first the default
    head_dim: int | None = None  # default width of a head; None = an equal share
    norm_offset: float = 0.0  # of the weights of all norms
    scale: Callable[[ConfigReader], float | None] = lambda _reader: None  # of scores; None = usual
    caps: tuple[float | None, float | None] | None = None  # defaults of the caps of scores, logits
    residual: str = "pre"  # see `LMConfig`
    local_theta: float | None = None  # default base in layers with windows; None = as in others
    activation: str = "hidden_act"  # entry with the activation of the gates
    kv_heads: int | None = None  # default number of key/value heads; None = as many as heads
    multipliers: Callable[[ConfigReader], _Multipliers] = lambda _reader: _Multipliers()
    experts: ExpertsFormat | None = None  # in the place of MLPs
    defaults: tuple[tuple[str, object], ...] = ()  # of entries that are absent, not null

    def with_defaults(self, reader: ConfigReader) -> ConfigReader:
        """Return a reader of a configuration in which the class's defaults stand for the absent."""
        absent = {name: value for name, value in self.defaults if name not in reader.entries}
        if reader.entries.get("rope_scaling"):  # the older name of rope_parameters
            absent.pop("rope_parameters", None)
        return ConfigReader({**absent, **reader.entries}, reader.where)

    def residual_of(self, reader: ConfigReader) -> str:
        """Return how a block adds its attention and MLP, see `LMConfig`."""
        one = self.parallel
        parallel = reader.flag(one) if isinstance(one, str) else one
        return "parallel" if parallel else self.residual

    def qk_norm_of(self, reader: ConfigReader) -> type[Norm] | None:
        """Return the norm of queries and keys."""
        return self.qk_norm if not self.qk_norm_if or reader.flag(self.qk_norm_if) else None

    def biases(self, reader: ConfigReader) -> tuple[bool, bool, bool]:
        """Return whether q, k and v, the output projection, and the MLP have biases."""
        fields = (self.qkv_bias, self.o_bias, self.mlp_bias)
        qkv, o, mlp = (reader.flag(one) if isinstance(one, str) else one for one in fields)
        return qkv, o, mlp

    def read_caps(self, reader: ConfigReader) -> tuple[float | None, float | None]:
        """Return the caps of scores and logits; an entry that is null means none."""
        if self.caps is None:
            return None, None
        names = ("attn_logit_softcapping", "final_logit_softcapping")
        given = [
            reader.entries.get(n, default) for n, default in zip(names, self.caps, strict=True)
        ]
        scores, logits = (
            None if cap is None else reader.number(name, cap)
            for name, cap in zip(names, given, strict=True)
        )
        return scores, logits


def _build_llama(reader: ConfigReader, *, variant: _LlamaVariant) -> LM:
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
    qkv_bias, o_bias, mlp_bias = variant.biases(reader)
    score_cap, logit_cap = variant.read_caps(reader)
    qk_norm = variant.qk_norm_of(reader)
    whole, local = _read_ropes(reader, head_dim, variant)
    experts = None if variant.experts is None else variant.experts.read(reader)
    mlp_width = reader.size("intermediate_size")
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=reader.depth("num_hidden_layers"),
        mlp_width=experts.width if experts and not experts.dense else mlp_width,
        activation=gates[reader.one_of(variant.activation, *gates)],
        norm=variant.norm,
        residual=variant.residual_of(reader),
        logit_cap=logit_cap,
        eps=reader.number(variant.eps),
        positions="none",
        bias=(variant.norm == "layer" and variant.norm_bias) or mlp_bias,
        tied=reader.flag("tie_word_embeddings", default=variant.tied),
        experts=experts,
    )
    # null means as many as heads; an entry that is missing, the default of their class
    null = "num_key_value_heads" in reader.entries
    absent = heads if null else variant.kv_heads or heads
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=reader.size("num_key_value_heads", absent),
        head_dim=None if head_dim * heads == width else head_dim,
        pattern=Causal(),
        norm=NoNorm() if qk_norm is None else qk_norm(config.eps),
        kernel=Softmax(cap=score_cap, sink=variant.sinks),
        bias=qkv_bias or o_bias,
        scale=variant.scale(reader),
    )
    rotary = variant.rotary(reader, config.depth)
    windows = variant.windows(reader, rotary)
    thetas = reader.entries.get(variant.thetas) or [None] * config.depth
    specs = []
    for size, rotates, theta in zip(windows, rotary, thetas, strict=True):
        rope = whole if size is None else local
        rope = rope if theta is None else replace(rope, theta=float(theta or rope.theta))
        pattern = Causal() if size is None else Window(size) & Causal()
        specs.append(replace(spec, pattern=pattern, position=rope if rotates else NoPosition()))
    return config.build(specs, device="meta")


def _map_llama(lm: LM, reader: ConfigReader, *, variant: _LlamaVariant) -> list[TensorMapping]:
    reader = variant.with_defaults(reader)
    norm_bias = variant.norm == "layer" and variant.norm_bias
    qkv_bias, o_bias, mlp_bias = variant.biases(reader)
    qkv = {"bias": qkv_bias if qkv_bias or o_bias else None}
    output = {"bias": o_bias if qkv_bias or o_bias else None}
    mlp = {"bias": mlp_bias if lm.config.bias else None}
    mappings = head_and_tokens("model.embed_tokens.weight", lm) + norm(
        "model.norm", "norm", bias=norm_bias
    )
    for number in range(len(lm.blocks)):
        theirs, ours = f"model.layers.{number}", f"blocks.{number}"
        attention, own = f"{theirs}.self_attn", f"{ours}.attention"
        after, last = "post_attention_layernorm", "post_feedforward_layernorm"
        if lm.config.residual in ("both", "out"):
            mappings += norm(f"{theirs}.{after}", f"{ours}.attention_out_norm", bias=norm_bias)
            mappings += norm(f"{theirs}.{last}", f"{ours}.mlp_out_norm", bias=norm_bias)
        before = {"both": "pre_feedforward_layernorm", "parallel": "input_layernorm"}
        first = before.get(lm.config.residual, after)
        if lm.config.residual != "out":
            mappings += norm(f"{theirs}.input_layernorm", f"{ours}.attention_norm", bias=norm_bias)
            mappings += norm(f"{theirs}.{first}", f"{ours}.mlp_norm", bias=norm_bias)
        mappings += linear(f"{attention}.o_proj", f"{own}.o_proj", **output)
        experts = lm.config.experts
        if experts is None or variant.experts is None or number in experts.dense:
            mappings += gated(f"{theirs}.mlp", f"{ours}.mlp", packed=variant.packed, **mlp)
        else:
            mappings += variant.experts.mappings(theirs, ours, experts)
        if variant.sinks:
            mappings.append(TensorMapping(theirs=f"{attention}.sinks", ours=(f"{own}.sinks",)))
        for name, part in QK_NORMS[variant.qk_norm_of(reader)]:
            if not variant.qk_norm_parts:
                mappings += norm(f"{attention}.{name}", f"{own}.{part}", bias=False)
                continue
            heads = lm.specs[number].num_heads if name == "q_norm" else lm.specs[number].kv_heads
            mappings += [
                TensorMapping(
                    theirs=f"{attention}.{variant.qk_norm_parts.format(name[0], head)}.weight",
                    ours=(f"{own}.{part}.weight",),
                    row=head,
                )
                for head in range(heads)
            ]
        if variant.packed:
            projections = tuple(f"{own}.{name}_proj" for name in "qkv")
            mappings += linear(f"{attention}.qkv_proj", projections, **qkv)
            continue
        for name in "qkv":
            mappings += linear(f"{attention}.{name}_proj", f"{own}.{name}_proj", **qkv)
    return [_multiplied(one, lm, variant, variant.multipliers(reader)) for one in mappings]


def gated(
    theirs: str, ours: str, *, packed: bool = False, bias: bool | None
) -> list[TensorMapping]:
    """Map an MLP with gates; packed: whether gate and up are one tensor."""
    mappings = linear(f"{theirs}.down_proj", f"{ours}.down", bias=bias)
    if packed:
        both = (f"{ours}.gate", f"{ours}.up")
        return mappings + linear(f"{theirs}.gate_up_proj", both, bias=bias)
    for name in ("gate", "up"):
        mappings += linear(f"{theirs}.{name}_proj", f"{ours}.{name}", bias=bias)
    return mappings


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
    return replace(mapping, factor=factor or 1.0, offset=offset)


def _llama(
    model_type: str, class_name: str, bare_name: str = "", **differences: Any
) -> Architecture:
    variant = _LlamaVariant(**differences)
    return Architecture(
        model_type=model_type,
        class_name=class_name,
        bare_name=bare_name or class_name.replace("ForCausalLM", "Model"),
        ties=variant.tied,
        build=partial(_build_llama, variant=variant),
        mappings=partial(_map_llama, variant=variant),
        prefix="model.",
        derived=(".rotary_emb.inv_freq",),
    )


def _build_phi(reader: ConfigReader) -> LM:
    reader.one_of("is_causal", True)
    heads, width = reader.heads("num_attention_heads", "hidden_size")
    reader.one_of("qk_layernorm", False)
    config = LMConfig(
        vocabulary_size=reader.size("vocab_size"),
        length=longest_text(reader),
        d_model=width,
        depth=reader.depth("num_hidden_layers"),
        mlp_width=reader.size("intermediate_size"),
        activation=ACTIVATIONS[reader.one_of("hidden_act", *ACTIVATIONS)],
        residual="parallel",
        eps=reader.number("layer_norm_eps", 1e-5),
        positions="none",
        tied=reader.one_of("tie_word_embeddings", False),
        head_bias=True,
    )
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=reader.size("num_key_value_heads", heads),
        pattern=Causal(),
        position=read_rope(reader, width // heads, share=0.5),
    )
    return config.build(spec, device="meta")


def _map_phi(lm: LM, _reader: ConfigReader) -> list[TensorMapping]:
    mappings = [
        TensorMapping(theirs="model.embed_tokens.weight", ours=("embedding.tokens.weight",)),
        *linear("lm_head", "head"),
        *norm("model.final_layernorm", "norm"),
    ]
    for number in range(len(lm.blocks)):
        theirs, ours = f"model.layers.{number}", f"blocks.{number}"
        mappings += norm(f"{theirs}.input_layernorm", f"{ours}.attention_norm")
        mappings += norm(f"{theirs}.input_layernorm", f"{ours}.mlp_norm")
        for name in "qkv":
            mappings += linear(f"{theirs}.self_attn.{name}_proj", f"{ours}.attention.{name}_proj")
        mappings += linear(f"{theirs}.self_attn.dense", f"{ours}.attention.o_proj")
        mappings += linear(f"{theirs}.mlp.fc1", f"{ours}.mlp.up")
        mappings += linear(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")
    return mappings


QK_NORMS: dict[type[Norm] | None, tuple[tuple[str, str], ...]] = {
    None: (),
    HeadRMS: (("q_norm", "q_norm"), ("k_norm", "k_norm")),
    HeadLayerNorm: (("q_norm", "q_norm"), ("k_norm", "k_norm")),
    ProjectionRMS: (("q_norm", "q_norm.norm"), ("k_norm", "k_norm.norm")),
}
"""The tensors of norms of queries and keys, theirs and ours."""
NO_BIASES = {"qkv_bias": False, "o_bias": False, "mlp_bias": False}

_GEMMA = {
    "o_bias": "attention_bias",
    "mlp_bias": False,
    "tied": True,
    "gates": (("gelu_pytorch_tanh", "geglu_tanh"), ("gelu", "geglu")),
    "head_dim": 256,
    "norm_offset": 1.0,
    "multipliers": _gemma_multipliers,
}
_NEWER_GEMMA = _GEMMA | {
    "activation": "hidden_activation",
    "scale": _gemma_scale,
    "residual": "both",
    "kv_heads": 4,
}
_COHERE = {
    "mlp_bias": False,
    "norm": "layer",
    "norm_bias": False,
    "eps": "layer_norm_eps",
    "layout": "interleaved",
    "tied": True,
    "theta": 500_000.0,
    "parallel": True,
    "multipliers": _cohere_multipliers,
}
_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ONE_WAY = ("use_bidirectional_attention", False)

LLAMAS = (
    _llama("llama", "LlamaForCausalLM"),
    _llama(
        "mistral",
        "MistralForCausalLM",
        **NO_BIASES,
        kv_heads=8,
        windows=partial(_equal_windows, default=4096),
    ),
    _llama(
        "qwen2",
        "Qwen2ForCausalLM",
        **(NO_BIASES | {"qkv_bias": True}),
        kv_heads=32,
        windows=_late_windows,
    ),
    _llama(
        "qwen3",
        "Qwen3ForCausalLM",
        mlp_bias=False,
        qk_norm=HeadRMS,
        kv_heads=32,
        windows=_late_windows,
    ),
    _llama(
        "smollm3",
        "SmolLM3ForCausalLM",
        tied=True,
        kv_heads=4,
        theta=2_000_000.0,
        rotary=_listed_rotary,
        windows=_windows_without_rope,
    ),
    _llama(
        "granite",
        "GraniteForCausalLM",
        scale=_granite_scale,
        multipliers=_granite_multipliers,
    ),
    _llama(
        "granite_swa",
        "GraniteSWAForCausalLM",
        tied=True,
        scale=_granite_scale,
        multipliers=_granite_multipliers,
        kv_heads=4,
        rotary=_rotary_by_theta,
        thetas="layer_rope_theta",
        windows=_windows_but_every_fourth,
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
        windows=partial(_regular_windows, period=2),
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
        windows=_regular_windows,
    ),
    _llama(
        "helium",
        "HeliumForCausalLM",
        kv_heads=20,
        o_bias=False,
        layout="interleaved",
        theta=100_000.0,
    ),
    _llama("phi3", "Phi3ForCausalLM", **NO_BIASES, packed=True, share=1.0, windows=_equal_windows),
    _llama(
        "stablelm",
        "StableLmForCausalLM",
        **(NO_BIASES | {"qkv_bias": "use_qkv_bias"}),
        norm="layer",
        eps="layer_norm_eps",
        kv_heads=32,
        share=0.25,
        parallel="use_parallel_residual",
        qk_norm=HeadLayerNorm,
        qk_norm_if="qk_layernorm",
        qk_norm_parts="{}_layernorm.norms.{}",
    ),
    _llama(
        "olmo2",
        "Olmo2ForCausalLM",
        mlp_bias=False,
        qk_norm=ProjectionRMS,
        residual="out",
    ),
    _llama(
        "gpt_oss",
        "GptOssForCausalLM",
        mlp_bias=True,
        sinks=True,
        theta=150_000.0,
        head_dim=64,
        kv_heads=8,
        windows=partial(_regular_windows, period=2, size=128),
        experts=GPT_OSS,
        defaults=(("attention_bias", True), ("rope_parameters", _GPT_OSS_YARN)),
    ),
    _llama(
        "mixtral",
        "MixtralForCausalLM",
        **NO_BIASES,
        kv_heads=8,
        theta=1_000_000.0,
        windows=_equal_windows,
        experts=MIXTRAL,
    ),
    _llama(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        mlp_bias=False,
        qk_norm=HeadRMS,
        kv_heads=4,
        windows=_windows_if_used,
        experts=QWEN3_MOE,
    ),
    _llama(
        "cohere",
        "CohereForCausalLM",
        **_COHERE,
        qk_norm=HeadLayerNorm,
        qk_norm_if="use_qk_norm",
    ),
    _llama(
        "cohere2",
        "Cohere2ForCausalLM",
        **_COHERE | {"theta": 10_000.0},
        rotary=_rotary_in_windows,
        windows=_every_fourth_full,
    ),
)
PHI = Architecture(
    model_type="phi",
    class_name="PhiForCausalLM",
    bare_name="PhiModel",
    build=_build_phi,
    mappings=_map_phi,
    prefix="model.",
    derived=(".rotary_emb.inv_freq",),
)
