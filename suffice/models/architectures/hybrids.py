"""Hybrids of transformers: most layers are recurrences, and every few have softmax attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from suffice.combine import Gated
from suffice.encoders import HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Delta
from suffice.models.architectures.architecture import (
    SIZES,
    Architecture,
    ConfigReader,
    Row,
    Specs,
    TensorMapping,
    map_rows,
    read_sizes,
)
from suffice.models.architectures.decoders import (
    BODY_ROWS,
    MLP_ROWS,
    NORMS,
    OUTPUT_ROWS,
    QKV,
    QKV_ROWS,
    block_rows,
)
from suffice.models.architectures.layer_types import read_layer_types
from suffice.models.architectures.rope import longest_text, read_rope
from suffice.models.lm import LM, LMConfig
from suffice.patterns import Causal
from suffice.spec import AttentionSpec

LAYER_TYPES = ("linear_attention", "full_attention")


def _read(reader: ConfigReader, *, kv_heads: int) -> tuple[LMConfig, Specs]:
    reader.one_of("is_causal", True)
    reader.one_of("hidden_act", "silu")
    config = LMConfig(
        **read_sizes(reader, SIZES),
        length=longest_text(reader),
        activation="swiglu",
        norm="rms",
        eps=reader.number("rms_norm_eps", 1e-6),
        positions="none",
        bias=False,
        tied=reader.flag("tie_word_embeddings"),
    )
    head_dim = reader.size("head_dim", 256)
    full = AttentionSpec(
        d_model=config.d_model,
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
        d_model=config.d_model,
        num_heads=values,
        head_dim=key_width,
        pattern=Causal(),
        kernel=Delta(convolution=reader.size("linear_conv_kernel_dim", 4)),
        combine=Gated(activation="silu", norm=True, eps=config.eps),
        bias=False,
    )
    layers = _recurrent_layers(reader, config.depth)
    return config, [recurrent if one else full for one in layers]


def _read_next(reader: ConfigReader) -> tuple[LMConfig, Specs]:
    """Return the sizes where all blocks have MLPs; refuse experts with a gated shared one."""
    depth, step = reader.depth("num_hidden_layers"), reader.size("decoder_sparse_step", 1)
    listed = reader.entries.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise ConfigError(
            f"{reader.where}: mlp_only_layers={listed!r:.80} is not a list of layers."
        )
    mixtures = [n for n in range(depth) if n not in listed and (n + 1) % step == 0]
    if mixtures and reader.entries.get("num_experts", 512) != 0:
        raise ConfigError(
            f"{reader.where}: layer {mixtures[0]} has experts and a shared one with a gate, "
            "which are not supported in hybrids; only MLPs in all layers are (mlp_only_layers)."
        )
    return _read(reader, kv_heads=2)


def _recurrent_layers(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers are recurrences: as listed, else all but each fourth or nth."""
    interval = reader.size("full_attention_interval", 4)
    full = [(number + 1) % interval == 0 for number in range(depth)]
    return [one == LAYER_TYPES[0] for one in read_layer_types(reader, LAYER_TYPES, full)]


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
            f"{reader.where}: linear_value_head_dim={value_width} is not supported with "
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

    `parts`: whether each part has a head for each value, or one for each key.

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


ALL_LAYERS: list[Row] = [
    *BODY_ROWS,
    *MLP_ROWS,
    *block_rows("model.layers.*", "blocks.*", NORMS["pre"]),
]
FULL_LAYERS: list[Row] = [
    *OUTPUT_ROWS,
    *QKV_ROWS[1:],
    ("model.layers.*.self_attn.q_proj", (QKV[0], "blocks.*.attention.gate_proj")),
]
RECURRENT, GATES = "model.layers.*.linear_attn", "blocks.*.attention.recurrence.gates"
RECURRENT_LAYERS: list[Row] = [
    (f"{RECURRENT}.conv1d.weight", "blocks.*.attention.recurrence.convolution"),
    (f"{RECURRENT}.dt_bias", f"{GATES}.step_bias"),
    (f"{RECURRENT}.A_log", f"{GATES}.log_rate"),
    *block_rows(RECURRENT, "blocks.*.attention", "norm:head_norm out_proj:o_proj"),
]
INPUTS_APART: list[Row] = [
    (f"{RECURRENT}.in_proj_qkv", QKV),
    *block_rows(RECURRENT, GATES, "in_proj_a:decay_proj in_proj_b:beta_proj"),
    (f"{RECURRENT}.in_proj_z", "blocks.*.attention.gate_proj"),
]
INPUTS_BY_KEY: list[Row] = [
    (f"{RECURRENT}.in_proj_qkvz", (*QKV, "blocks.*.attention.gate_proj")),
    (f"{RECURRENT}.in_proj_ba", (f"{GATES}.beta_proj", f"{GATES}.decay_proj")),
]


def _mappings(lm: LM, reader: ConfigReader, *, inputs: list[Row]) -> list[TensorMapping]:
    layers: dict[bool, list[int]] = {False: [], True: []}
    for number, spec in enumerate(lm.specs):
        layers[spec.lane == "recurrence"].append(number)
    mappings = [
        *map_rows(ALL_LAYERS, lm),
        *map_rows(FULL_LAYERS, lm, blocks=layers[False]),
        *map_rows([*RECURRENT_LAYERS, *inputs], lm, blocks=layers[True]),
    ]
    heads = _recurrent_heads(reader)
    by_key = partial(_rows_by_key, *heads[:2])
    gathered = {
        "conv1d": _rows(*heads),
        "in_proj_qkv": _rows(*heads),
        "in_proj_qkvz": by_key(heads[2], (False, False, True, True)),
        "in_proj_ba": by_key(1, (True, True)),
    }

    def placed(mapping: TensorMapping) -> TensorMapping:
        block, _, name = mapping.theirs.removesuffix(".weight").rpartition(".")
        if "norm" in name and not block.endswith("linear_attn"):
            return replace(mapping, offset=1.0)  # stored gains are 0 where they change nothing
        if name in ("q_proj", "bias") and "q_proj" in mapping.ours[0]:
            return replace(mapping, groups=lm.specs[layers[False][0]].num_heads)
        if name == "conv1d":
            taps = lm.specs[layers[True][0]].kernel.convolution
            rows = gathered[name]
            return replace(mapping, gathered=rows, shape=(max(rows) + 1, 1, taps))
        return replace(mapping, gathered=gathered.get(name, ()))

    return [placed(one) for one in mappings]


HYBRIDS = (
    Architecture(
        model_type="qwen3_5_text",
        class_name="Qwen3_5ForCausalLM",
        bare_name="Qwen3_5TextModel",
        sizes=partial(_read, kv_heads=4),
        mappings=partial(_mappings, inputs=INPUTS_APART),
        prefix="model.",
        nested="model.language_model.",
        derived=(".rotary_emb.inv_freq",),
    ),
    Architecture(
        model_type="qwen3_next",
        class_name="Qwen3NextForCausalLM",
        bare_name="Qwen3NextModel",
        sizes=_read_next,
        mappings=partial(_mappings, inputs=INPUTS_BY_KEY),
        prefix="model.",
        derived=(".rotary_emb.inv_freq",),
    ),
)
