"""Reads the sizes of a decoder from a config.json, by the table `families.json`.

The page reads the same table in JavaScript, and tests compare both. No class is built and no code
of a checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from suffice.errors import ConfigError
from suffice.fits.checkpoint_bits import checkpoint_bits
from suffice.fits.tables import table

Sizes = dict[str, Any]
"""What the calculator counts from: the fields of "defaults" in `calculator.json`."""
Sum = list[list[int | str]]
"""A sum of products of numbers and of names of sizes."""

LARGEST_SIZE = 1 << 32


class _Config:
    def __init__(self, content: object) -> None:
        if not isinstance(content, dict):
            raise ConfigError("a config.json is an object, from { to }.")
        self.entries: dict[str, Any] = dict(content)
        for name in table("families")["nested"]:
            inner = self.entries.get(name)
            self.entries |= inner if isinstance(inner, dict) else {}
        self.type = str(self.entries.get("model_type") or "")
        families = table("families")["families"]
        self.known = self.type.lower() in families
        self.family: dict[str, Any] = families.get(self.type.lower(), {})
        for theirs, ours in self.family.get("renamed", {}).items():
            outer, _, inner = theirs.rpartition(".")
            place = self.entries.get(outer) if outer else self.entries
            if outer == "per_layer_config" and isinstance(place, dict):
                place = self._alike(list(place.values()))
            if isinstance(place, dict) and inner in place:
                self.entries[ours] = place[inner]

    @staticmethod
    def _alike(layers: list[Any]) -> object:
        """Return what is said of each of some layers."""
        if any(layer != layers[0] for layer in layers):
            raise ConfigError(
                "per_layer_config: layers of more than two kinds are not counted here."
            )
        return next(iter(layers), None)

    def get(self, name: str) -> Any:
        value = self.entries.get(name)
        return self.family.get("defaults", {}).get(name) if value is None else value

    def number(self, *names: str) -> int:
        """Return the first entry that is there, 0 for none."""
        for name in names:
            value = self.get(name)
            if isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= LARGEST_SIZE:
                raise ConfigError(f"{name}={value!r:.40}: give a whole number, one for all layers.")
            return value
        return 0

    def names(self, name: str) -> list[Any]:
        """Return a list, empty for none."""
        value = self.get(name)
        return value if isinstance(value, list) else []


def read_config(content: object, *, quantised: bool = True) -> tuple[Sizes, str]:
    """Return the sizes of a config.json, and a warning about what is not known of it.

    Args:
        content: the parsed file.
        quantised: whether to read in how many bits the weights are stored.

    Raises:
        ConfigError: for what is not a decoder, or has layers or bits that are not counted.

    Example:
        >>> config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2,
        ...           "num_attention_heads": 4, "intermediate_size": 96}
        >>> sizes, warning = read_config(config)
        >>> sizes["qk_norm"], sizes["vocabulary"], warning
        (True, 0, '')
    """
    config = _Config(content)
    _refuse(config)
    family, attends = config.family, config.family.get("attention", True)
    width = config.number("hidden_size", "n_embd", "d_model", "dim")
    layers = config.number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = config.number("num_attention_heads", "n_head", "n_heads", "num_heads")
    needed = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if missing := [name for name, value in needed.items() if not value]:
        raise ConfigError(f"this config.json has no {', no '.join(missing)}.")
    plain, qk_norm = bool(family.get("plain")), family.get("qk_norm", False)
    sizes = table("calculator")["defaults"] | {
        "name": config.type or "from config.json",
        "d_model": width,
        "layers": layers,
        "num_heads": heads if attends else 1,
        **(_attention(config, heads) if attends else {}),
        "vocabulary": config.number("vocab_size"),
        "trained": config.number("max_position_embeddings", "n_positions", "max_seq_len"),
        "gate": bool(family.get("gate")) and config.get("attn_output_gate") is not False,
        "bias": any(config.get(name) is True for name in ("attention_bias", "qkv_bias")) or plain,
        "mlp_bias": config.get("mlp_bias") is True or plain or bool(family.get("mlp_bias")),
        "norm_bias": plain,
        "gated": not plain,
        "positions": config.number("n_positions") if plain else 0,
        "rotary": not plain,
        "norms": family.get("norms", 2),
        "qk_norm": config.get(qk_norm) is True if isinstance(qk_norm, str) else qk_norm,
        "active_embedding": family.get("active_embedding", True),
    }
    tied = config.get("tie_word_embeddings")
    sizes["tied"] = tied if isinstance(tied, bool) else bool(family.get("tied"))
    sizes |= _experts(config, layers, width) if attends else {}
    sizes |= _layers(config, sizes)
    sizes |= {
        "extra_parameters": _conditional(config, "parameters", sizes),
        "extra_embeddings": _conditional(config, "embeddings", sizes),
    }
    stored = config.entries if quantised else config.entries | {"quantization_config": None}
    bits, warning = checkpoint_bits(stored, layers)
    return sizes | bits, " ".join(filter(None, (_warning(config), warning)))


def _warning(config: _Config) -> str:
    if config.known:
        return ""
    named = f"The family {config.type:.60}" if config.type else "A config.json without model_type"
    code = " Its classes come with the checkpoint and are not run." * ("auto_map" in config.entries)
    return (
        f"{named} is not known here and was counted as a plain decoder: check the layers, norms "
        f"and biases.{code}"
    )


def _refuse(config: _Config) -> None:
    facts, entries = table("families"), config.entries
    encoder = config.type.lower().startswith(tuple(facts["not_decoders"]))
    if entries.get("is_encoder_decoder") is True or encoder:
        raise ConfigError(
            f"{config.type or 'this'} is not a decoder: it keeps no KV cache between tokens; give "
            "the config.json of a decoder."
        )
    for name in ("num_kv_shared_layers", "index_head_dim"):
        if entries.get(name) and not config.known:
            raise ConfigError(f"{name}: what {config.type:.60} caches is not known here.")
    present = (name for name, value in entries.items() if value is not None)
    parts = facts["recurrent_keys"]
    name = next((name for name in present if any(part in name.lower() for part in parts)), None)
    if name is not None and "recurrence" not in config.family:
        raise ConfigError(
            f"{name} says that layers of {config.type[:60] or 'this model'} do not attend; "
            "their state is not known here."
        )


def _attention(config: _Config, heads: int) -> Sizes:
    if rank := config.number("kv_lora_rank"):
        indexed = config.names("indexer_types")
        return {
            "projections": "MLA",
            "rank": rank,
            "rotary_dim": config.number("qk_rope_head_dim"),
            "head_dim": config.number("qk_nope_head_dim"),
            "value_dim": config.number("v_head_dim"),
            "query_rank": config.number("q_lora_rank"),
            "index_dim": config.number("index_head_dim"),
            "index_layers": indexed.count("full"),
        }
    shared = config.number("num_key_value_heads", "n_kv_heads", "num_kv_heads")
    shared = 1 if config.get("multi_query") is True else shared
    one_map = config.get("attention_k_eq_v") is True
    return {
        "num_kv_heads": 0 if shared == heads else shared,
        "head_dim": config.number("head_dim"),
        "full_head_dim": config.number("global_head_dim"),
        "full_kv_heads": config.number("num_global_key_value_heads") if one_map else 0,
        "one_kv_map": one_map,
        "shared_layers": config.number("num_kv_shared_layers"),
    }


def _experts(config: _Config, layers: int, width: int) -> Sizes:
    count = config.number("num_experts", "n_routed_experts", "num_local_experts")
    mlp = config.number("intermediate_size", "n_inner", "ffn_dim", "hidden_dim") or 4 * width
    shared_width = config.number("shared_intermediate_size", "shared_expert_intermediate_size")
    if count < 2:  # noqa: PLR2004 - one expert is an MLP
        return {"mlp_width": shared_width or mlp}
    step = config.number("decoder_sparse_step", "interleave_moe_layer_step") or 1
    first, listed = config.number("first_k_dense_replace"), config.names("mlp_only_layers")
    dense = sum(n < first or n in listed or (n + 1) % step != 0 for n in range(layers))
    if kinds := config.names("mlp_layer_types"):
        dense = kinds.count("dense")
    expert = config.number("moe_intermediate_size") or mlp
    if config.get("enable_moe_block") is True:
        shared_width = mlp
    if shared_width % expert:
        raise ConfigError(
            f"a shared expert of width {shared_width} for experts of {expert} is not counted here."
        )
    shared = config.number("n_shared_experts", "num_shared_experts") or shared_width // expert
    return {
        "experts": count,
        "expert_width": expert,
        "active_experts": config.number(
            "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk",
            "top_k_experts",
        ) or 1,
        "shared_experts": shared or config.family.get("shared_experts", 0),
        "dense_layers": dense,
        "mlp_width": config.number("intermediate_size_mlp") or mlp if dense else 0,
    }  # fmt: skip


def _kinds(config: _Config, layers: int, window: int) -> Sequence[str]:
    if listed := _listed_kinds(config, layers):
        return listed
    family, numbers = config.family, range(1, layers + 1)
    if not family.get("attention", True):
        return ["recurrent"] * layers
    if every := config.number("full_attention_interval") or family.get("full_every", 0):
        return ["recurrent" if n % every else "full" for n in numbers]
    if "recurrence" in family:
        raise ConfigError(f"layer_types: nothing says which layers of {config.type} are recurrent.")
    switch = config.get("use_sliding_window")
    if not window or switch is False:
        return ["full"] * layers
    if switch is True:  # Qwen's: windows from a layer on
        first = config.number("max_window_layers")
        return ["window" if n > first else "full" for n in numbers]
    every = config.number("sliding_window_pattern", "_sliding_window_pattern")
    every = every or family.get("windows_every", 0)
    return ["full" if every and n % every == 0 else "window" for n in numbers]


def _listed_kinds(config: _Config, layers: int) -> list[str]:
    legal = table("families")["kinds"]
    listed = config.names("layer_types") or config.names("layers_block_type")
    if flags := config.names("attn_type_list"):
        listed = ["attention" if flag else "mamba" for flag in flags]
    linear = config.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    for numbers, first in ((full, 1), (config.get("attn_layer_indices"), 0)):
        if isinstance(numbers, list) and numbers:
            listed = ["attention" if n + first in numbers else "mamba" for n in range(layers)]
    if listed and len(listed) != layers:
        raise ConfigError(f"the kinds of {len(listed)} layers are listed, of {layers}.")
    for name in listed:
        if not isinstance(name, str) or name not in legal:
            raise ConfigError(
                f"layers of the kind {name!r:.40} are not counted here; known are "
                f"{', '.join(legal)}."
            )
    return [legal[name] for name in listed]


def _layers(config: _Config, sizes: Sizes) -> Sizes:
    window = config.number("sliding_window", "attention_chunk_size")
    kinds = _kinds(config, sizes["layers"], window)
    full = kinds.count("full")
    if full == len(kinds):
        return {}
    fields: Sizes = {"window": 0 if "recurrent" in kinds else window}
    if "recurrent" in kinds:
        if "window" in kinds:
            raise ConfigError("windows and recurrences in one model are not counted here.")
        fields |= _recurrence(config, sizes)
    elif not window:
        raise ConfigError("layers have windows, but no sliding_window says how long.")
    fields["chunked"] = bool(fields["window"]) and not config.number("sliding_window")
    every = kinds.index("full") + 1 if full else 0
    regular = every > 1 and all(
        (k == "full") == ((n + 1) % every == 0) for n, k in enumerate(kinds)
    )
    return fields | {"full_every": every if regular else 0, "full_count": 0 if regular else full}


def _recurrence(config: _Config, sizes: Sizes) -> Sizes:
    if "recurrence" not in config.family:
        raise ConfigError(
            f"layers of {config.type[:60] or 'this model'} are recurrent, and their state is not "
            "known here."
        )
    form = table("families")["recurrences"][config.family["recurrence"]]
    named = _named(config, sizes)
    channels = _total(form["channels"], named)
    taps = named(form["taps"]) if isinstance(form["taps"], str) else form["taps"]
    more = {"channels": channels, "taps": taps}
    parameters = _total(form["parameters"], lambda name: more.get(name) or named(name))
    return {
        "recurrent_numbers": _total(form["state"], named),
        "convolution_numbers": channels * (taps - 1),
        "recurrent_parameters": parameters,
    }


def _named(config: _Config, sizes: Sizes) -> Callable[[str], int]:
    heads = sizes["num_heads"]
    known = {
        "width": sizes["d_model"],
        "layers": sizes["layers"],
        "heads": heads,
        "kv": sizes["num_kv_heads"] or heads,
        "head": sizes["head_dim"] or sizes["d_model"] // heads,
        "indexers": sizes["index_layers"] or sizes["layers"],
    }

    def value(name: str) -> int:
        if name in known:
            return known[name]
        entry = config.get(name)
        if isinstance(entry, bool):
            return int(entry)
        if entry is None:
            raise ConfigError(f"this config.json has no {name}.")
        return config.number(name)

    return value


def _total(terms: Sum, named: Callable[[str], int]) -> int:
    return sum(prod(named(n) if isinstance(n, str) else n for n in term) for term in terms)


def _conditional(config: _Config, part: str, sizes: Sizes) -> int:
    named, terms = _named(config, sizes), config.family.get(part, {})
    return sum(_total(sums, named) for name, sums in terms.items() if not name or config.get(name))
