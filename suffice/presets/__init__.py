"""Published mechanisms by name: each only assembles axis values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.presets.efficient import efficient
from suffice.presets.gqa import gqa
from suffice.presets.mqa import mqa
from suffice.presets.optimised import optimised
from suffice.presets.standard import standard
from suffice.presets.super_attention import super_attention
from suffice.spec import AttentionSpec

PRESETS: dict[str, Callable[..., AttentionSpec]] = {
    "standard": standard,
    "optimised": optimised,
    "efficient": efficient,
    "super_attention": super_attention,
    "gqa": gqa,
    "mqa": mqa,
}

__all__ = [
    "PRESETS",
    "efficient",
    "gqa",
    "mqa",
    "needs_length",
    "optimised",
    "preset",
    "standard",
    "super_attention",
]


def preset(name: str, d_model: int, num_heads: int, **options: Any) -> AttentionSpec:
    """Return the spec of a published mechanism.

    Args:
        name: of the mechanism, see `PRESETS`.
        d_model: features.
        num_heads: query heads.
        **options: of that preset's function; others are refused.

    Raises:
        ConfigError: for an unknown name or option, or a missing one.

    Example:
        >>> preset("efficient", 128, 4).cost(length=64).parameters
        33024
    """
    if name not in PRESETS:
        raise unknown("mechanism", name, PRESETS)
    legal = inspect.signature(PRESETS[name]).parameters
    for option in options:
        if option not in legal:
            raise unknown(f"option of {name}", option, legal)
    if needs_length(name) and "length" not in options:
        raise ConfigError(f"{name} fixes the length of its input; give length=, in tokens.")
    return PRESETS[name](d_model, num_heads, **options)


def needs_length(name: str) -> bool:
    """Return whether a mechanism must be told the longest input."""
    length = inspect.signature(PRESETS[name]).parameters.get("length")
    return length is not None and length.default is inspect.Parameter.empty
