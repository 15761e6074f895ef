"""Bytes of a streaming state of one layer and one text.

In 32 and 16 bits every number is kept as it is. In 8 and 4 bits it is what `Quantised` keeps:
codes of whole blocks of positions, ranges in float32, and the latest positions in 16 bits. Sums
of features are float32 always.
"""

from __future__ import annotations

from functools import lru_cache

from suffice.cost import Cost
from suffice.memory import Quantised
from suffice.spec import AttentionSpec

CODED = Quantised()
RANGE = 8  # bytes: a least number and a step
EXACT, HALF = 4, 2  # bytes of a float32, of a float16


@lru_cache(maxsize=256)
def counted(spec: AttentionSpec) -> Cost:
    """Return the costs of a layer that no length changes: parameters and numbers of the state."""
    return spec.cost(1)


def state_bytes(spec: AttentionSpec, tokens: int, bits: int) -> int:
    """Return the bytes of what a layer keeps of so many tokens.

    Args:
        spec: of the layer.
        tokens: positions that are kept.
        bits: of a number: 32, 16, 8 or 4.

    Example:
        >>> from suffice import preset
        >>> state_bytes(preset("standard", 2048, 32, causal=True), 2048, 16)
        16777216
    """
    cost = counted(spec)
    fixed = cost.state_fixed * EXACT
    if bits > CODED.bits:
        return fixed + cost.state_numbers * tokens * bits // 8
    coded = max(tokens - CODED.recent, 0) // CODED.block * CODED.block
    plain = (tokens - coded) * cost.state_numbers * HALF
    return fixed + plain + coded // CODED.block * block_bytes(spec, bits)


def token_bytes(spec: AttentionSpec, bits: int) -> float:
    """Return the bytes that each further token adds where all are kept."""
    if bits > CODED.bits:
        return counted(spec).state_numbers * bits / 8
    return block_bytes(spec, bits) / CODED.block


def block_bytes(spec: AttentionSpec, bits: int) -> int:
    """Return the bytes of a coded block: codes, and ranges of the first tensor and the others."""
    numbers, width = counted(spec).state_numbers, spec.widths.kv
    if not numbers:
        return 0
    others = numbers // width - 1
    groups = -(-spec.head_width // CODED.group) * spec.kv_heads
    ranges = RANGE * (width + others * CODED.block * groups)
    return numbers * CODED.block * bits // 8 + ranges
