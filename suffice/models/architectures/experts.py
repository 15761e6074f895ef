"""Mixtures of experts of transformers: their entries in a config.json, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suffice.errors import ConfigError
from suffice.layers import Experts
from suffice.models.architectures.architecture import ConfigReader, Row, TensorMapping
from suffice.models.lm import LM

BLOCK, OURS = "model.layers.*.mlp", "blocks.*.mlp"
LISTED: tuple[Row, ...] = (
    (f"{BLOCK}.gate", f"{OURS}.router"),
    (f"{BLOCK}.gate.e_score_correction_bias", f"{OURS}.correction"),
    *(
        (f"{BLOCK}.{theirs}.{name}_proj", f"{OURS}.{ours}.{name}")
        for theirs, ours in (("experts.#", "experts.#"), ("shared_experts", "shared"))
        for name in ("gate", "up", "down")
    ),
)
"""The tensors of each expert, the router and a shared expert."""


@dataclass(frozen=True, kw_only=True)
class ExpertsFormat:
    """How an architecture gives its experts."""

    read: Callable[[ConfigReader], Experts]
    write: Callable[[Experts], dict[str, Any]] = lambda _experts: {}
    rows: tuple[Row, ...] = LISTED
    mappings: Callable[[LM], list[TensorMapping]] | None = None  # where rows do not say all


def _read_gpt_oss(reader: ConfigReader) -> Experts:
    return Experts(
        num_experts=reader.size("num_local_experts", 128),
        top_k=reader.size("num_experts_per_tok", 4),
        width=reader.size("intermediate_size", 2880),
        router_bias=True,
        alpha=reader.number("swiglu_alpha", 1.702),
        limit=reader.number("swiglu_limit", 7.0),
    )


def _map_gpt_oss(lm: LM) -> list[TensorMapping]:
    """Map tensors that stack all experts, inputs first, with gate and up in turn."""
    experts, mappings = lm.config.experts, []
    for block in range(len(lm.blocks)):
        for number in range(experts.num_experts):
            prefix = f"blocks.{block}.mlp.experts.{number}"
            for name, parts, groups in (
                ("gate_up_proj", (f"{prefix}.gate", f"{prefix}.up"), experts.width),
                ("down_proj", (f"{prefix}.down",), 1),
            ):
                for kind, suffix in (("weight", ""), ("bias", "_bias")):
                    mapping = TensorMapping(
                        theirs=f"model.layers.{block}.mlp.experts.{name}{suffix}",
                        ours=tuple(f"{part}.{kind}" for part in parts),
                        transposed=kind == "weight",
                        stacked=(number, experts.num_experts),
                        groups=groups,
                    )
                    mappings.append(mapping)
    return mappings


def _read_mixtral(reader: ConfigReader) -> Experts:
    return Experts(
        num_experts=reader.size("num_local_experts", 8),
        top_k=reader.size("num_experts_per_tok", 2),
        width=reader.size("intermediate_size", 14336),
    )


def _write_mixtral(experts: Experts) -> dict[str, Any]:
    return {"num_local_experts": experts.num_experts, "num_experts_per_tok": experts.top_k}


def _read_among_mlps(reader: ConfigReader) -> Experts:
    depth, step = reader.depth("num_hidden_layers"), reader.size("decoder_sparse_step", 1)
    listed = reader.entries.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(one) is int for one in listed):
        raise ConfigError(f"{reader.where}: mlp_only_layers={listed!r:.80} are not whole numbers.")
    # newer files name the experts as Mixtral's do
    count = "num_local_experts" if "num_local_experts" in reader.entries else "num_experts"
    return Experts(
        num_experts=reader.size(count, 128),
        top_k=reader.size("num_experts_per_tok", 8),
        width=reader.size("moe_intermediate_size", 768),
        normalised=reader.flag("norm_topk_prob"),
        dense=tuple(n for n in range(depth) if n in listed or (n + 1) % step),
    )


def _write_among_mlps(experts: Experts) -> dict[str, Any]:
    return _write_mixtral(experts) | {
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normalised,
        "mlp_only_layers": list(experts.dense),
    }


def _read_deepseek(reader: ConfigReader) -> Experts:
    depth = reader.depth("num_hidden_layers")
    first = reader.entries.get("first_k_dense_replace", 3)
    if type(first) is not int or first < 0:
        raise ConfigError(
            f"{reader.where}: first_k_dense_replace={first!r:.40} is not a whole number."
        )
    for name, legal in (("moe_layer_freq", 1), ("topk_method", "noaux_tc")):
        reader.one_of(name, legal)
    width = reader.size("moe_intermediate_size", 2048)
    return Experts(
        num_experts=reader.size("n_routed_experts", 256),
        top_k=reader.size("num_experts_per_tok", 8),
        width=width,
        scores=reader.one_of("scoring_func", "sigmoid"),
        normalised=reader.flag("norm_topk_prob", default=True),
        scale=reader.number("routed_scaling_factor", 2.5),
        correction=True,
        groups=reader.size("n_group", 8),
        top_groups=reader.size("topk_group", 4),
        shared_width=width * reader.size("n_shared_experts", 1),
        dense=tuple(range(min(first, depth))),
    )


GPT_OSS = ExpertsFormat(
    read=_read_gpt_oss, rows=((f"{BLOCK}.router", f"{OURS}.router"),), mappings=_map_gpt_oss
)
MIXTRAL = ExpertsFormat(
    read=_read_mixtral,
    write=_write_mixtral,
    rows=(
        ("model.layers.*.block_sparse_moe.gate", f"{OURS}.router"),
        *(
            (f"model.layers.*.block_sparse_moe.experts.#.{theirs}", f"{OURS}.experts.#.{ours}")
            for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
        ),
    ),
)
AMONG_MLPS = ExpertsFormat(read=_read_among_mlps, write=_write_among_mlps)
DEEPSEEK = ExpertsFormat(read=_read_deepseek)
