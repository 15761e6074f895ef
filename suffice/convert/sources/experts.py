"""Mixtures of experts of transformers: their entries in a config.json, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffice.convert.sources.architecture import ConfigReader, TensorMapping, linear
from suffice.errors import ConfigError
from suffice.layers import Experts

PROJECTIONS = (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))


@dataclass(frozen=True, kw_only=True)
class ExpertsFormat:
    """How an architecture gives its experts."""

    read: Callable[[ConfigReader], Experts]
    mappings: Callable[[str, str, Experts], list[TensorMapping]]  # of a block, theirs and ours


def _read_gpt_oss(reader: ConfigReader) -> Experts:
    return Experts(
        num_experts=reader.size("num_local_experts", 128),
        top_k=reader.size("num_experts_per_tok", 4),
        width=reader.size("intermediate_size", 2880),
        router_bias=True,
        alpha=reader.number("swiglu_alpha", 1.702),
        limit=reader.number("swiglu_limit", 7.0),
    )


def _map_gpt_oss(theirs: str, ours: str, experts: Experts) -> list[TensorMapping]:
    """Map tensors that stack all experts, inputs first, with gate and up in turn."""
    count, mappings = experts.num_experts, linear(f"{theirs}.mlp.router", f"{ours}.mlp.router")
    for number in range(count):
        own, stack = f"{ours}.mlp.experts.{number}", f"{theirs}.mlp.experts"
        both = (f"{own}.gate", f"{own}.up")
        for name, parts, groups in (
            ("gate_up_proj", both, experts.width),
            ("down_proj", (f"{own}.down",), 1),
        ):
            options = {"stacked": (number, count), "groups": groups}
            weights, biases = (tuple(f"{p}.{kind}" for p in parts) for kind in ("weight", "bias"))
            mappings += [
                TensorMapping(theirs=f"{stack}.{name}", ours=weights, transposed=True, **options),
                TensorMapping(theirs=f"{stack}.{name}_bias", ours=biases, **options),
            ]
    return mappings


def _read_mixtral(reader: ConfigReader) -> Experts:
    return Experts(
        num_experts=reader.size("num_local_experts", 8),
        top_k=reader.size("num_experts_per_tok", 2),
        width=reader.size("intermediate_size", 14336),
    )


def _map_mixtral(theirs: str, ours: str, experts: Experts) -> list[TensorMapping]:
    block = f"{theirs}.block_sparse_moe"
    mappings = linear(f"{block}.gate", f"{ours}.mlp.router", bias=None)
    for number in range(experts.num_experts):
        for part, name in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            own = f"{ours}.mlp.experts.{number}.{part}"
            mappings += linear(f"{block}.experts.{number}.{name}", own, bias=None)
    return mappings


def _read_qwen3(reader: ConfigReader) -> Experts:
    depth, step = reader.depth("num_hidden_layers"), reader.size("decoder_sparse_step", 1)
    listed = reader.entries.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(one) is int for one in listed):
        raise ConfigError(f"{reader.where}: mlp_only_layers={listed!r:.80} are no whole numbers.")
    # newer files name the experts as Mixtral's do
    count = "num_local_experts" if "num_local_experts" in reader.entries else "num_experts"
    return Experts(
        num_experts=reader.size(count, 128),
        top_k=reader.size("num_experts_per_tok", 8),
        width=reader.size("moe_intermediate_size", 768),
        normalised=reader.flag("norm_topk_prob"),
        dense=tuple(n for n in range(depth) if n in listed or (n + 1) % step),
    )


def _read_deepseek(reader: ConfigReader) -> Experts:
    depth = reader.depth("num_hidden_layers")
    first = reader.entries.get("first_k_dense_replace", 3)
    if type(first) is not int or first < 0:
        raise ConfigError(
            f"{reader.where}: first_k_dense_replace={first!r:.40} is no whole number."
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


def _map_listed(theirs: str, ours: str, experts: Experts) -> list[TensorMapping]:
    """Map the tensors of each expert, and those of the router and a shared expert."""
    theirs, ours = f"{theirs}.mlp", f"{ours}.mlp"
    mappings = linear(f"{theirs}.gate", f"{ours}.router", bias=None)
    modules = {f"experts.{n}": f"experts.{n}" for n in range(experts.num_experts)}
    if experts.shared_width is not None:
        modules["shared_experts"] = "shared"
    if experts.correction:
        name = f"{theirs}.gate.e_score_correction_bias"
        mappings.append(TensorMapping(theirs=name, ours=(f"{ours}.correction",)))
    for their_module, our_module in modules.items():
        for part, name in PROJECTIONS:
            own = f"{ours}.{our_module}.{part}"
            mappings += linear(f"{theirs}.{their_module}.{name}", own, bias=None)
    return mappings


GPT_OSS = ExpertsFormat(read=_read_gpt_oss, mappings=_map_gpt_oss)
MIXTRAL = ExpertsFormat(read=_read_mixtral, mappings=_map_mixtral)
QWEN3_MOE = ExpertsFormat(read=_read_qwen3, mappings=_map_listed)
DEEPSEEK = ExpertsFormat(read=_read_deepseek, mappings=_map_listed)
