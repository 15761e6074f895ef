"""A mechanism at the sizes asked for, and what sets it apart in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.presets import PRESETS, preset, takes_length
from suffice.view import brief

if TYPE_CHECKING:
    from suffice import AttentionSpec
    from suffice.cost import Cost

EVERY, SPARSE = "Every pair", "Some pairs: sparse patterns"
MIXED, FEATURES = "Mixed along the sequence first", "No pairs: kernels of features"
SEGMENTS = "Segments, and a memory of those before"
GROUPS = (EVERY, MIXED, SPARSE, FEATURES, SEGMENTS)


def sized(
    name: str, d_model: int, num_heads: int, *, length: int, **options: object
) -> AttentionSpec:
    """Return the spec of a mechanism, made for this length where it is made for one.

    Raises:
        ConfigError: for an unknown name, or sizes it cannot have.
    """
    if name in PRESETS and takes_length(name):
        options["length"] = length
    return preset(name, d_model, num_heads, **options)


def state(cost: Cost, numbers: str = "", fixed: str = " fixed") -> str:
    """Return what a streaming layer keeps: numbers for each token, or for any number of them.

    "none" if it cannot stream.

    Args:
        cost: of the layer.
        numbers: what follows a count for each token.
        fixed: what follows a count that does not grow.

    Example:
        >>> from suffice import preset
        >>> state(preset("standard", 64, 4).cost(9), numbers=" numbers per token")
        '128 numbers per token'
    """
    told = [f"{cost.state_numbers:,}{numbers}"] if cost.state_numbers else []
    if cost.state_fixed:
        told.append(f"{cost.state_fixed:,}{fixed}")
    return " + ".join(told) or "none"


def axes(spec: AttentionSpec) -> str:
    """Name the axis values that differ from multi-head attention over every key.

    Example:
        >>> from suffice import preset
        >>> axes(preset("efficient", 64, 4, causal=True))
        'Efficient, Causal'
    """
    parts = []
    if type(spec.projections).__name__ != "Standard":
        parts.append(type(spec.projections).__name__)
    if type(spec.pattern).__name__ != "Full":
        parts.append(brief(spec.pattern))
    if spec.kv_heads != spec.num_heads:
        parts.append(f"{spec.kv_heads} KV head{'s' if spec.kv_heads > 1 else ''}")
    if spec.mixing.mixes:
        parts.append(type(spec.mixing).__name__)
    if type(spec.kernel).__name__ != "Softmax":
        parts.append(type(spec.kernel).__name__)
    if spec.norm.norms:
        parts.append(type(spec.norm).__name__)
    if spec.past.reads:
        parts.append(type(spec.past).__name__)
    if spec.position.absolute:
        parts.append(type(spec.position).__name__)
    return ", ".join(parts) or "Standard"


def group(spec: AttentionSpec) -> str:
    """Return which of the groups a mechanism belongs to."""
    if spec.past.reads:
        return SEGMENTS
    if not spec.kernel.weighs_pairs:
        return FEATURES
    if spec.mixing.mixes:
        return MIXED
    if type(spec.pattern).__name__ in ("Full", "Causal"):
        return EVERY
    return SPARSE
