"""A query sees itself and what came before it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees the keys at its own position and before.

    The pattern of language models, alone or beside another: `Window(256) & Causal()`. It speaks of
    positions, not of indices: one new token after 8 cached ones stands at position 8 and sees all
    nine.

    Cost: T * (T + 1) / 2 visible pairs for T = S; dense ops compute all T * S.
    Example:
        >>> Causal().mask(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3. No difference.
    """

    causal = True
    relative = True
    dense = True

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key is not after the query."""
        return k_positions <= q_positions

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: their two far corners decide."""
        return judged(none=k_first > q_last, every=k_last <= q_first)

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - the order stays
        """Return Causal: thinning keeps the order."""
        return self

    def pairs(self, queries: int, keys: int) -> int:
        """Count the pairs: query i of T sees S - T + i + 1 keys, none if that is negative."""
        first = max(0, queries - keys)  # earlier rows stand before the first key
        rows = queries - first
        return rows * (2 * (keys - queries + first + 1) + rows - 1) // 2
