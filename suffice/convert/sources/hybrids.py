"""Hybrids of transformers: most layers are recurrences, and every few have softmax attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from suffice.combine import Gated
from suffice.convert.sources.architecture import (
    Architecture,
    ConfigReader,
    TensorMapping,
    linear,
    norm,
)
from suffice.convert.sources.decoders import gated, head_and_tokens, longest_text, read_rope
from suffice.encoders import HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Delta
from suffice.models import LM, LMConfig
from suffice.patterns import Causal
from suffice.spec import AttentionSpec

LAYER_TYPES = ("linear_attention", "full_attention")
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
    _, values, key_width = _recurrent_heads(reader)
    recurrent = AttentionSpec(
        d_model=width,
        num_heads=values,
        head_dim=key_width,
        pattern=Causal(),
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
    legal = isinstance(types, list) and all(one in LAYER_TYPES for one in types)
    if not legal or len(types) != depth:
        raise ConfigError(
            f"{reader.where}: layer_types={types!r:.80} are not {' or '.join(LAYER_TYPES)} for "
            f"each of {depth} layers."
        )
    return [one == LAYER_TYPES[0] for one in types]


def _recurrent_heads(reader: ConfigReader) -> tuple[int, int, int]:
    """Return the heads of keys and of values of a recurrence, and the width of both."""
    keys = reader.size("linear_num_key_heads", 16)
    values = reader.size("linear_num_value_heads", 32)
    if values % keys:
        raise ConfigError(
            f"{reader.where}: linear_num_key_heads={keys} does not divide "
            f"linear_num_value_heads={values}."
        )
    width = reader.size("linear_key_head_dim", 128)
    value_width = reader.size("linear_value_head_dim", 128)
    if value_width != width:
        raise ConfigError(
            f"{reader.where}: linear_value_head_dim={value_width} is not supported beside "
            f"linear_key_head_dim={width}; only equal widths are."
        )
    return keys, values, width


def _rows(keys: int, values: int, width: int) -> tuple[int, ...]:
    """Return their rows of our queries, keys and values, which repeat a key for each value of it.

    Example:
        >>> _rows(1, 2, 1)
        (0, 0, 1, 1, 2, 3)
    """
    shared = values // keys
    queries = [head // shared * width + at for head in range(values) for at in range(width)]
    end = 2 * keys * width
    return (*queries, *(keys * width + row for row in queries), *range(end, end + values * width))


def _rows_by_key(keys: int, values: int, width: int, parts: tuple[bool, ...]) -> tuple[int, ...]:
    """Return their rows of ours where theirs have all parts of the first key, of the second, ...

    Args:
        keys: heads of keys.
        values: heads of values.
        width: rows of a head.
        parts: whether each part has a head for each value, or one for each key.

    Example:
        >>> _rows_by_key(1, 2, 1, (False, True))
        (0, 0, 1, 2)
    """
    shared, rows, start = values // keys, [], 0
    block = width * sum(shared if by_value else 1 for by_value in parts)
    for by_value in parts:
        for head in range(values):
            first = head // shared * block + start + by_value * (head % shared) * width
            rows += range(first, first + width)
        start += width * (shared if by_value else 1)
    return tuple(rows)


def _gathered(theirs: str, ours: tuple[str, ...], rows: tuple[int, ...]) -> list[TensorMapping]:
    return [replace(one, gathered=rows) for one in linear(theirs, ours, bias=None)]


def _inputs_apart(theirs: str, own: str, reader: ConfigReader) -> list[TensorMapping]:
    gates = f"{own}.recurrence.gates"
    qkv = tuple(f"{own}.{name}_proj" for name in "qkv")
    return [
        *_gathered(f"{theirs}.in_proj_qkv", qkv, _rows(*_recurrent_heads(reader))),
        *linear(f"{theirs}.in_proj_a", f"{gates}.decay_proj", bias=None),
        *linear(f"{theirs}.in_proj_b", f"{gates}.beta_proj", bias=None),
        *linear(f"{theirs}.in_proj_z", f"{own}.gate_proj", bias=None),
    ]


def _inputs_by_key(theirs: str, own: str, reader: ConfigReader) -> list[TensorMapping]:
    keys, values, width = _recurrent_heads(reader)
    wide = tuple(f"{own}.{name}_proj" for name in ("q", "k", "v", "gate"))
    gates = tuple(f"{own}.recurrence.gates.{name}_proj" for name in ("beta", "decay"))
    rows = _rows_by_key(keys, values, width, (False, False, True, True))
    single = _rows_by_key(keys, values, 1, (True, True))
    return [
        *_gathered(f"{theirs}.in_proj_qkvz", wide, rows),
        *_gathered(f"{theirs}.in_proj_ba", gates, single),
    ]


def _map_recurrent(theirs: str, own: str, reader: ConfigReader, taps: Any) -> list[TensorMapping]:
    rows, gates = _rows(*_recurrent_heads(reader)), f"{own}.recurrence.gates"
    return [
        TensorMapping(
            theirs=f"{theirs}.conv1d.weight",
            ours=(f"{own}.recurrence.convolution",),
            shape=(max(rows) + 1, 1, taps),
            gathered=rows,
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
            taps = spec.kernel.convolution
            mappings += inputs(f"{theirs}.linear_attn", own, reader)
            mappings += _map_recurrent(f"{theirs}.linear_attn", own, reader, taps)
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
