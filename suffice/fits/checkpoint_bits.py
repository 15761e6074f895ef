"""Bits of the weights of a checkpoint that is stored quantised, from its config.json.

`calculator/bits.js` of the page counts the same by the same table, and tests compare both.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from suffice.errors import ConfigError
from suffice.fits.tables import table

HALF = {"float32": 32, "bfloat16": 16, "float16": 16}


def checkpoint_bits(config: dict[str, Any], layers: int) -> tuple[dict[str, float], str]:
    """Return the bits of a number of each part, scales included, and a warning.

    Args:
        config: entries of a config.json, nested ones included.
        layers: layers of the decoder; entries about later ones are passed over.

    Raises:
        ConfigError: for a method whose bits are not known.

    Example:
        >>> awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
        >>> checkpoint_bits({"quantization_config": awq}, layers=2)[0]["weight_bits"]
        4.15625
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
