"""The attention of a model as transformers' configurations store and describe it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.patterns import And, Causal, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec


def stored(specs: Sequence[AttentionSpec]) -> list[dict[str, Any]]:
    """Return specs as plain data: one where all are equal, else one for each layer."""
    alike = all(one == specs[0] for one in specs)
    return [one.to_json() for one in (specs[:1] if alike else specs)]


def restored(data: Sequence[dict[str, Any]], depth: int) -> list[AttentionSpec]:
    """Return the spec of each layer from `stored`'s data.

    Raises:
        ConfigError: if there is neither one nor one for each layer.
    """
    if len(data) not in (1, depth):
        raise ConfigError(
            f"specs holds {len(data)} layers for num_hidden_layers={depth}; give one, or one for "
            "each."
        )
    specs = [AttentionSpec.from_json(one) for one in data]
    return specs * depth if len(specs) == 1 else specs


def of_mechanism(
    mechanism: str,
    *,
    d_model: int,
    num_heads: int,
    num_kv_heads: int | None,
    head_dim: int | None,
    depth: int,
    length: int,
    causal: bool,
) -> list[AttentionSpec]:
    """Return the specs of a published mechanism by name, as `suffice.schedule` does.

    Raises:
        ConfigError: for an unknown mechanism, or one that does not fit the sizes.
    """
    if mechanism not in PRESETS:
        raise unknown("mechanism", mechanism, PRESETS)
    options: dict[str, Any] = {"causal": causal} if causal else {}
    if takes_length(mechanism):
        options["length"] = length
    specs = schedule(mechanism, d_model, num_heads, depth=depth, **options)
    sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    given = {name: size for name, size in sizes.items() if size is not None}
    return [dataclasses.replace(one, **given) for one in specs]


def window_of(pattern: Pattern) -> int | None:
    """Return the size of a causal window; None for any other pattern.

    Example:
        >>> window_of(Window(8) & Causal()), window_of(Causal())
        (8, None)
    """
    parts = pattern.parts if isinstance(pattern, And) else ()
    sizes = [part.size for part in parts if isinstance(part, Window)]
    return sizes[0] if len(sizes) == 1 and len(parts) == 2 and Causal() in parts else None


def layer_type(spec: AttentionSpec) -> str:
    """Return which of transformers' names for a layer comes nearest.

    Example:
        >>> layer_type(AttentionSpec(d_model=8, num_heads=2, pattern=Window(4) & Causal()))
        'sliding_attention'
    """
    if not spec.kernel.weighs_pairs:
        return "linear_attention"
    return "full_attention" if window_of(spec.pattern) is None else "sliding_attention"
