"""A pattern says which key positions a query position may see.

One object, several uses: `allowed` is the predicate every op and memory asks, `layout` lists the
blocks a fast op has to touch, `pairs` counts what a query-key product costs. Positions are
integers; a query without an earlier context stands at the last `queries` of `keys` positions
(bottom-right alignment), so one new token after 8 cached ones stands at position 8.

Letters: T queries, S keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.axis import Axis


@dataclass(frozen=True)
class Layout:
    """Which key blocks each query block touches.

    Args:
        block: side of a block in positions.
        touched: int8 [query blocks, key blocks]; 0 nothing allowed, 1 some pairs, 2 every pair.
    """

    block: int
    touched: Tensor


class Pattern(Axis, ABC, family="pattern"):
    """Base of all patterns; values combine with `&` and `|`."""

    causal: bool = False
    """True if no query ever sees a key after itself."""

    dense: bool = False
    """True if ops compute the whole query-key matrix: skipping blocks would save little."""

    crosses: bool = False
    """True if the pattern means something between two sequences, as cross-attention has them."""

    max_length: int | None = None
    """The longest sequence it can serve, in tokens; None = any."""

    heads: int | None = None
    """The number of heads it is made for; None = any, and all alike."""

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the pattern of each head."""
        return (self,) * num_heads

    @abstractmethod
    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the query position may see the key position; the shapes broadcast.

        Positions come as [..., T, 1] and [..., 1, S]. A pattern whose heads differ returns its
        heads on the third axis from the right.
        """

    def __and__(self, other: Pattern) -> Pattern:
        return self.table["And"]((self, other))

    def __or__(self, other: Pattern) -> Pattern:
        return self.table["Or"]((self, other))

    def mask(self, queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return the dense mask of `queries` that stand last among `keys`: bool [T, S].

        [H, T, S] where the heads differ.
        """
        q = torch.arange(keys - queries, keys, device=device)
        k = torch.arange(keys, device=device)
        allowed = self.allowed(q[:, None], k[None, :])
        return allowed.expand(*allowed.shape[:-2], queries, keys)

    def layout(self, queries: int, keys: int, block: int = 64) -> Layout:
        """Return the blocks touched by `queries` that stand last among `keys`."""
        starts = range(0, queries, block)
        touched = torch.zeros(len(starts), -(-keys // block), dtype=torch.int8)
        k = torch.arange(keys)
        for row, start in enumerate(starts):
            q = torch.arange(start, min(start + block, queries)) + keys - queries
            rows = self.allowed(q[:, None], k[None, :]).expand(len(q), keys)
            for column, part in enumerate(rows.split(block, dim=1)):
                touched[row, column] = int(part.any()) + int(part.all())
        return Layout(block, touched)

    def pairs(self, queries: int, keys: int) -> int:
        """Count the visible query-key pairs of `queries` that stand last among `keys`."""
        k = torch.arange(keys)
        rows = torch.arange(keys - queries, keys).split(256)
        return sum(
            int(self.allowed(q[:, None], k[None, :]).expand(len(q), keys).sum()) for q in rows
        )
