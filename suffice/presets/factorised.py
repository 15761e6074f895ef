"""How the two patterns of the Sparse Transformer become one of all heads."""

from __future__ import annotations

from suffice.errors import ConfigError
from suffice.patterns import Causal, Pattern, PerHead


def factorised(
    near: Pattern, far: Pattern, num_heads: int, *, per_head: bool, causal: bool
) -> Pattern:
    """Return the union of two patterns, or the first one for half of the heads.

    Args:
        near: of the first heads; the larger half, if their number is odd.
        far: of the others.
        num_heads: query heads.
        per_head: whether heads differ.
        causal: no look-ahead.

    Raises:
        ConfigError: for heads that differ and fewer than two of them.
    """
    if per_head and num_heads < 2:  # noqa: PLR2004
        raise ConfigError(
            f"per_head gives the two patterns to different heads; num_heads={num_heads} is too "
            "few. Give two heads or more, or per_head=False."
        )
    half = num_heads // 2
    pattern = PerHead((near,) * (num_heads - half) + (far,) * half) if per_head else near | far
    return pattern & Causal() if causal else pattern
