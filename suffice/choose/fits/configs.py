"""Reads the sizes of a decoder from a config.json, by the table `families.json`.

The page reads the same table in JavaScript, and tests compare both. No class is built and no code
of a checkpoint is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from suffice.choose.fits import table
from suffice.errors import ConfigError

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
                kinds = list(place.values())
                if any(kind != kinds[0] for kind in kinds):
                    raise ConfigError(
                        "per_layer_config: layers of more than two kinds are not counted here."
                    )
                place = next(iter(kinds), None)
            if isinstance(place, dict) and inner in place:
                self.entries[ours] = place[inner]

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
    """Return the sizes of a parsed config.json, and a warning about what is not known of it.

    Raise ConfigError for what is not a decoder, or has layers or bits that are not counted. Unless
    `quantised`, the bits in which its weights are stored are not read.
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


HALF = {"float32": 32, "bfloat16": 16, "float16": 16}


def checkpoint_bits(config: dict[str, Any], layers: int) -> tuple[dict[str, float], str]:
    """Return the bits of a number of each part, scales included, and a warning.

    Entries about later layers than the decoder's are passed over.
    """
    plain = HALF.get(str(config.get("torch_dtype") or config.get("dtype")), 16)
    entries = config.get("quantization_config")
    if entries is None:
        return {"weight_bits": plain}, ""
    if not isinstance(entries, dict):
        raise _wrong("quantization_config", entries, "use an object, or delete it")
    loaded = any(entries.get(f"load_in_{bits}bit") is True for bits in (4, 8))
    method = "bitsandbytes" if loaded else str(entries.get("quant_method"))
    bits = _bits(entries, method)
    if bits is None:
        return {"weight_bits": plain}, ""
    if method == "mxfp4":
        return {"weight_bits": plain, "expert_bits": bits}, ""
    kept, unread = _unquantised(entries, layers)
    rules = table("families")["quantised"]
    listed = any(isinstance(entries.get(name), list) for name in rules["skipped"])
    if method in rules["grouped"] or not listed:
        kept |= set() if entries.get("lm_head") is True else {"head"}
    found = dict.fromkeys(("weight", "attention", "expert", "head"), bits)
    if entries.get("expert_dtype") == "fp4":
        found["expert"] = 4 + _scale_bits(entries, method) / 32
    found |= dict.fromkeys(kept, plain)
    head = found.pop("head")
    found["embedding"] = plain if config.get("tie_word_embeddings") is True else (plain + head) / 2
    named = [name for name in rules["by_layer"] if entries.get(name)] + unread
    warning = f"Not counted of quantization_config: {', '.join(named[:3])}." if named else ""
    base = {"weight": found.pop("weight")}
    parts = base | {part: value for part, value in found.items() if value != base["weight"]}
    return {f"{part}_bits": value for part, value in parts.items()}, warning


def _wrong(name: str, value: object, legal: str) -> ConfigError:
    return ConfigError(f"{name}={value!r:.60}: {legal}.")


def _unquantised(entries: dict[str, Any], layers: int) -> tuple[set[str], list[str]]:
    rules, kept, unread = table("families")["quantised"], set[str](), []
    for name in (str(name) for key in rules["skipped"] for name in entries.get(key) or []):
        text = name.lower()
        numbers = [int(number) for number in re.findall("[0-9]+", text)]
        small = text.endswith("gate") or any(part in text for part in rules["small"])
        if small or (numbers and numbers[0] >= layers):
            continue
        words = set(re.findall("[a-z_]+", text)) - set(rules["around"])
        parts = next((parts for legal, parts in rules["parts"] if words and words <= {*legal}), [])
        if numbers or not parts:
            unread.append(name[:60])
        else:
            kept.update(parts)
    return kept, unread


def _bits(entries: dict[str, Any], method: str) -> float | None:
    rules = table("families")["quantised"]
    if method in rules["grouped"]:  # codes, and for each group a scale of 16 bits and a zero point
        bits = _whole(entries, "bits", 4)
        return bits + _share(entries, "group_size", 128, 16 + bits)
    if method == "bitsandbytes":  # 64 numbers share a float32, or 8 bits, of which 256 share one
        nested = entries.get("bnb_4bit_use_double_quant") is True
        scales = 8 / 64 + 32 / 16384 if nested else 32 / 64
        return 4 + scales if entries.get("load_in_4bit") is True else 8
    if method in rules["blocks"]:
        block = rules["blocks"][method][0]
        return 8 + _share(entries, "weight_block_size", block, _scale_bits(entries, method))
    if method == "compressed-tensors":
        return _compressed(entries)
    if method not in rules["fixed"]:
        known = ", ".join([*rules["grouped"], *rules["blocks"], *rules["fixed"], *rules["other"]])
        raise _wrong(
            "quant_method", method, f"its bits are not known (known are {known}); set --bits"
        )
    return rules["fixed"][method]


def _scale_bits(entries: dict[str, Any], method: str) -> int:
    narrow = entries.get("scale_fmt") == "ue8m0"
    return 8 if narrow else table("families")["quantised"]["blocks"][method][1]


def _compressed(entries: dict[str, Any]) -> float | None:
    groups, form = entries.get("config_groups"), str(entries.get("format"))
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    weights = [one.get("weights") if isinstance(one, dict) else None for one in schemes]
    if any(one != weights[0] for one in weights):
        raise _wrong("config_groups", list(groups), "their bits differ; set --bits")
    if not weights or not isinstance(weights[0], dict) or form == "dense":
        return None
    bits = _whole(weights[0], "num_bits", 8)
    scale = 8 if form.startswith(("mx", "nv")) else 16
    scale += bits if weights[0].get("symmetric") is False else 0
    group = "group_size" if weights[0].get("block_structure") is None else "block_structure"
    stored = 32 / (32 // bits) if "pack" in form else 8  # whole codes in 32 bits, or bytes
    return stored + _share(weights[0], group, None, scale)


def _whole(entries: dict[str, Any], name: str, default: int) -> int:
    bits = entries.get(name, default)
    if type(bits) is not int or not 2 <= bits <= 8:  # noqa: PLR2004
        raise _wrong(name, bits, "use 2 to 8")
    return bits


def _share(entries: dict[str, Any], name: str, default: object, scale: int) -> float:
    """Return the bits of a scale for each number of its group; 0 for whole rows or tensors."""
    size = entries.get(name, default)
    sizes = size if isinstance(size, list) else [size]
    if size is None or sizes == [-1]:
        return 0
    if not all(type(number) is int and number > 0 for number in sizes):
        raise _wrong(name, size, "use numbers of at least 1")
    return scale / prod(sizes)
