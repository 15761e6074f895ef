"""Rotary positions in a config.json: the entries, and ours, in both directions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from suffice.encoders import NoNorm
from suffice.errors import ConfigError
from suffice.models.architectures.architecture import ConfigReader
from suffice.models.architectures.layer_types import LAYER_TYPES
from suffice.positions import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    PairScaling,
    Rope,
    YarnScaling,
)
from suffice.positions.rope import Scaling
from suffice.spec import AttentionSpec

OTHER_BEYOND = ("dynamic", "longrope")  # scalings whose frequencies change with a text's length


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


def read_ropes(
    reader: ConfigReader, head_dim: int, *by_type: dict[str, Any], **options: Any
) -> tuple[Rope, ...]:
    """Return the rotary positions of each of `LAYER_TYPES`, with entries that hold for one."""
    nested = reader.entries.get("rope_parameters") or {}
    if not isinstance(nested, dict) or not set(nested) <= set(LAYER_TYPES):
        raise ConfigError(
            f"{reader.where}: rope_parameters={nested!r:.80} are not given for "
            f"{' and '.join(LAYER_TYPES)}."
        )
    every = [
        reader.entries | entries | {"rope_parameters": nested.get(kind)}
        for kind, entries in zip(LAYER_TYPES, by_type, strict=True)
    ]
    return tuple(read_rope(ConfigReader(one, reader.where), head_dim, **options) for one in every)


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
    """Return the factor of rotated queries and keys; None: the paper's."""
    if reader.entries.get("attention_factor") is not None:
        return reader.number("attention_factor")
    scales = yarn_mscales(reader)
    return None if scales is None else scales[0] / scales[1]


def yarn_mscales(reader: ConfigReader) -> tuple[float, float] | None:
    """Return YaRN's factors by mscale and mscale_all_dim; None where both are absent.

    The quotient multiplies rotated queries and keys, and the square of the second the scores of
    DeepSeek's models.
    """
    names = ("mscale", "mscale_all_dim")
    if all(reader.entries.get(name) is None for name in names):
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
        raise ConfigError(f"{reader.where}: short_factor={factors!r:.60} are not numbers.")
    longest = reader.size("max_position_embeddings")
    original = reader.size("original_max_position_embeddings", longest)
    factor = reader.number("factor", longest / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    amplitude = reader.number("attention_factor", default)
    return PairScaling(tuple(map(float, factors)), attention_factor=amplitude)


def rotary_of(spec: AttentionSpec) -> Rope | None:
    """Return the rotary positions of a layer, whatever the norm of its queries and keys."""
    return replace(spec, norm=NoNorm()).lower().rotary


def rope_parameters(rope: Rope, head_dim: int, length: int) -> dict[str, Any]:
    """Return the entry rope_parameters of a model that reads texts of this length."""
    features, scaling = rope.features or head_dim, rope.scaling
    entry: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": rope.theta,
        "partial_rotary_factor": _share_of(features, head_dim),
    }
    if rope.length is not None and not (scaling is None or type(scaling) is PairScaling):
        raise ConfigError(f"transformers has no {rope!r}; export the model to onnx.")
    if type(scaling) is LinearScaling:
        entry |= {"rope_type": "linear", "factor": scaling.factor}
    elif type(scaling) is NTKScaling:
        entry["rope_theta"] = rope.theta * scaling.factor ** (features / max(features - 2, 1))
    elif type(scaling) is Llama3Scaling:
        entry |= {"rope_type": "llama3", "factor": scaling.factor}
        entry |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        entry["original_max_position_embeddings"] = scaling.length
    elif type(scaling) is YarnScaling:
        entry |= {"rope_type": "yarn", "factor": scaling.factor, "truncate": scaling.truncate}
        entry |= {"beta_fast": scaling.fast, "beta_slow": scaling.slow}
        entry["attention_factor"] = scaling.amplitude
        entry["original_max_position_embeddings"] = scaling.length
    elif type(scaling) is PairScaling:
        factors = list(scaling.factors)
        entry |= {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
        entry["attention_factor"] = scaling.amplitude
        entry["original_max_position_embeddings"] = rope.length or length
    elif scaling is None and rope.length is not None:  # the scaling that begins at the length
        entry |= {"rope_type": "dynamic", "factor": 1.0}
    elif scaling is not None:
        raise ConfigError(f"transformers has no {scaling!r}; export the model to onnx.")
    return entry


def _share_of(features: int, head_dim: int) -> float:
    """Return the share of a head's features that rounds down to a number of them.

    Example:
        >>> _share_of(2, 8), int(44 * (30 / 44)), int(44 * _share_of(30, 44))
        (0.25, 29, 30)
    """
    share = features / head_dim
    return share if int(head_dim * share) == features else math.nextafter(share, 1.0)
