"""What a mechanism's drawing shows, and what it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from suffice.view.drawing import LONGEST, Drawing, draw

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec


def drawing_of(spec: AttentionSpec, length: int) -> Drawing:
    """Return who sees whom of so many tokens, or of the first ones where they are too many."""
    tokens = min(length, LONGEST)
    drawing = draw(spec.pattern, tokens, spec.mixing.reads(tokens), spec.num_heads)
    if spec.kernel.weighs_pairs:
        return drawing
    return replace(drawing, panels=tuple(replace(panel, computed=0) for panel in drawing.panels))


def instead(spec: AttentionSpec, length: int) -> list[str]:
    """Say what a drawing of pairs does not show, a sentence each.

    Example:
        >>> from suffice import preset
        >>> instead(preset("super_attention", 64, 4, length=9), 9)
        ['Alignment mixes values along the sequence first: what a key holds comes from others too.']
    """
    told = []
    mixing, kernel = type(spec.mixing).__name__, type(spec.kernel).__name__
    if not spec.mixing.keeps_keys:
        told.append(
            f"{mixing} reads {spec.mixing.reads(length):,} keys in place of {length:,}, each a "
            "learned sum of them all."
        )
    elif spec.mixing.mixes:
        told.append(
            f"{mixing} mixes values along the sequence first: what a key holds comes from others "
            "too."
        )
    if not spec.kernel.weighs_pairs:
        told.append(
            f"{kernel} computes no pairs: it sums features over the keys that a query may see, "
            "which are these."
        )
    if length > LONGEST:
        told.append(f"Drawn are the first {LONGEST:,} of {length:,} tokens.")
    return told
