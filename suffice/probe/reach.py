"""How far back a model can hear, and what a layer keeps: both follow from the specs alone."""

from __future__ import annotations

from collections.abc import Sequence

from suffice.spec import AttentionSpec


def sees_pairs(spec: AttentionSpec) -> bool:
    """Return whether a layer hears of the past through the pairs of its pattern alone."""
    return spec.kernel.weighs_pairs and not spec.mixing.mixes and not spec.past.reads


def reach(specs: Sequence[AttentionSpec], *, kept: int | None = None) -> int | None:
    """Return how many tokens back a causal model can hear; None = as far as there are any.

    Each layer hears through those below it, so reaches add up.

    Args:
        specs: of its layers.
        kept: tokens that a rolling memory keeps, the own included; None = no memory.

    Example:
        >>> from suffice import preset
        >>> reach([preset("sliding_window", 16, 2, window=4, causal=True)] * 2)
        6
        >>> reach([preset("standard", 16, 2, causal=True)] * 2, kept=4)
        6
        >>> reach([preset("linear", 16, 2, causal=True)]) is None
        True
    """
    total = 0
    for spec in specs:
        bounds = [n for n in (spec.pattern.reach, kept) if n is not None]
        if not bounds or not sees_pairs(spec):
            return None
        total += min(bounds) - 1
    return total


def state_bytes(specs: Sequence[AttentionSpec], tokens: int) -> float:
    """Return the bytes a layer keeps of so many tokens in float32, the mean of the layers.

    A layer that reaches back less far keeps what it can still see.

    Example:
        >>> from suffice import preset
        >>> state_bytes([preset("standard", 16, 2, causal=True)], 24)
        3072.0
        >>> state_bytes([preset("sliding_window", 16, 2, window=4, causal=True)], 24)
        512.0
    """
    sizes = []
    for spec in specs:
        seen = spec.pattern.reach if sees_pairs(spec) else None
        sizes.append(spec.cost(tokens).state_bytes(tokens if seen is None else min(tokens, seen)))
    return sum(sizes) / len(sizes)
