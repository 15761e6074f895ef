"""Nothing inside the layer knows positions."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.positions.base import Position


@dataclass(frozen=True)
class NoPosition(Position):
    """Queries and keys as they are; the model adds positions to x, or needs none.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5. No difference.
    """

    absolute = False
