"""Which blocks of the query-key matrix a pattern touches, and how many pairs it allows.

A pattern bounds what happens inside a block without looking at its pairs; only blocks that stay
undecided are asked pair by pair, some at a time, so that nothing as large as the whole matrix is
ever built. What is only counted is bounded in large rectangles first, and those that stay
undecided are halved: a narrow band of a million positions is counted along its edges.

Letters: T queries, S keys; n blocks asked at once, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from suffice.patterns.base import Pattern

ASKED = 1 << 20  # pairs at a time
SIDE = 64  # positions; side of the blocks that pairs are counted by
WIDE = 16  # rectangles along a side that counting begins with
SOME, EVERY = 1, 2


@dataclass(frozen=True)
class Layout:
    """Which key blocks each query block touches.

    Args:
        block: side of a block in positions.
        touched: int8 [query blocks, key blocks]; 0 nothing allowed, 1 some pairs, 2 every pair.
            Where heads differ, 0 if no head allows anything, 2 if all allow everything.
    """

    block: int
    touched: Tensor


def layout_of(pattern: Pattern, queries: int, keys: int, block: int) -> Layout:
    """Return the exact layout of `queries` that stand last among `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, block)
        touched = grid.bounds()
        blocks = (touched == SOME).nonzero()
        for found in grid.ask(blocks[~grid.mixed(blocks)]):
            touched[found.rows, found.columns] = found.some.to(torch.int8) + found.every
        return Layout(block, touched)


def count_pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """Count the pairs some head sees, of `queries` that stand last among `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, SIDE)
        whole, undecided = grid.settle()
        top, bottom = (whole[:, :2] * SIDE).clamp(max=queries).unbind(1)
        left, right = (whole[:, 2:] * SIDE).clamp(max=keys).unbind(1)
        certain = int(((bottom - top) * (right - left)).sum())
        return certain + sum(found.pairs for found in grid.ask(undecided))


def count_blocks(pattern: Pattern, queries: int, keys: int, block: int) -> int:
    """Count the blocks a pattern touches, of `queries` that stand last among `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, block)
        whole, undecided = grid.settle()
        top, bottom, left, right = whole.unbind(1)
        mixed = grid.mixed(undecided)
        certain = int(((bottom - top) * (right - left)).sum()) + int(mixed.sum())
        return certain + sum(int(found.some.sum()) for found in grid.ask(undecided[~mixed]))


class _Asked(NamedTuple):
    """What the pairs of n blocks say.

    Args:
        rows: of the blocks, [n].
        columns: of the blocks, [n].
        some: bool [n], some pair is allowed for some head.
        every: bool [n], every pair is allowed for every head.
        pairs: allowed for some head, of all blocks together.
    """

    rows: Tensor
    columns: Tensor
    some: Tensor
    every: Tensor
    pairs: int


class _Grid:
    """The matrix of `queries` that stand last among `keys`, cut into blocks."""

    def __init__(self, pattern: Pattern, queries: int, keys: int, block: int) -> None:
        self.pattern, self.queries, self.keys, self.block = pattern, queries, keys, block
        self.q_starts = torch.arange(0, queries, block)
        self.k_starts = torch.arange(0, keys, block)
        self.heights = (queries - self.q_starts).clamp(max=block)  # the last may be ragged
        self.widths = (keys - self.k_starts).clamp(max=block)
        self.height, self.width = min(block, queries), min(block, keys)

    def bounds(self) -> Tensor:
        """Return what the pattern knows of each block: int8 [query blocks, key blocks]."""
        q = self.q_starts[:, None] + (self.keys - self.queries)
        k = self.k_starts[None]
        known = self.pattern.bounds(q, q + self.heights[:, None] - 1, k, k + self.widths - 1)
        return known.to(torch.int8).expand(len(q), k.shape[1]).clone()

    def settle(self) -> tuple[Tensor, Tensor]:
        """Halve rectangles of blocks until the pattern's bounds settle them.

        Returns:
            The rectangles whose every pair is allowed, in blocks: [n, 4] of the first row, the one
            behind the last, the first column and the one behind the last.
            The blocks that stay undecided, [m, 2].
        """
        ends = torch.tensor([len(self.q_starts), len(self.k_starts)])
        side = max(1, (1 << (int(ends.max()) - 1).bit_length()) // WIDE)
        begun = torch.cartesian_prod(*(torch.arange(0, int(end), side) for end in ends))
        quarters = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        whole = []
        while True:
            past = torch.minimum(begun + side, ends)
            known = self._bounds(begun, past)
            every = known == EVERY
            whole.append(torch.stack([begun, past], dim=2)[every].flatten(1))
            begun = begun[known == SOME]
            if side == 1:
                return torch.cat(whole), begun
            side //= 2
            begun = (begun[:, None] + side * quarters).flatten(0, 1)
            begun = begun[(begun < ends).all(dim=1)]

    def _bounds(self, begun: Tensor, past: Tensor) -> Tensor:
        """Return what the pattern knows of rectangles of blocks, each [n, 2]: int8 [n]."""
        ends = torch.tensor([self.queries, self.keys])
        shift = torch.tensor([self.keys - self.queries, 0])
        first = begun * self.block + shift
        last = torch.minimum(past * self.block, ends) - 1 + shift
        corners = (first[:, 0], last[:, 0], first[:, 1], last[:, 1])
        known = self.pattern.bounds(*(corner[:, None, None, None] for corner in corners))
        return known.expand(len(begun), 1, 1, 1).flatten()

    def mixed(self, blocks: Tensor) -> Tensor:
        """Return of blocks [n, 2] whether their first query or their first key settles them.

        Along the two every distance of a block occurs, and most patterns speak of distances.
        """
        found = torch.zeros(len(blocks), dtype=torch.bool)
        for number in _pieces(len(blocks), self.height + self.width):
            queries, keys = (part[:, None] for part in self._starts(blocks[number]))
            row = self._allowed(queries, keys + torch.arange(self.width)).flatten(1)
            column = self._allowed(queries + torch.arange(self.height), keys).flatten(1)
            edge = torch.cat([row, column], dim=1)
            found[number] = edge.any(dim=1) & ~edge.all(dim=1)
        return found

    def ask(self, blocks: Tensor) -> Iterator[_Asked]:
        """Ask every pair of blocks [n, 2]."""
        for number in _pieces(len(blocks), self.height * self.width):
            yield self._ask(blocks[number])

    def _ask(self, blocks: Tensor) -> _Asked:
        some = torch.zeros(len(blocks), dtype=torch.bool)
        every, pairs = ~some, 0
        first, keys = (part[:, None] for part in self._starts(blocks))
        keys = keys + torch.arange(self.width)
        for part in _pieces(self.height, self.width):
            queries = first + part
            allowed = self._allowed(queries, keys)
            some |= allowed.flatten(1).any(dim=1)
            every &= allowed.flatten(1).all(dim=1)
            real = (queries < self.queries)[..., None] & (keys < self.keys)[:, None]
            pairs += int((allowed.any(dim=1) & real).sum())
        return _Asked(*blocks.unbind(1), some, every, pairs)

    def _starts(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_starts[blocks[:, 0]], self.k_starts[blocks[:, 1]]

    def _allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return who sees whom, [n, H or 1, r, c]; an index past the end stands for the last."""
        q = queries.clamp(max=self.queries - 1) + (self.keys - self.queries)
        k = keys.clamp(max=self.keys - 1)
        allowed = self.pattern.allowed(q[:, None, :, None], k[:, None, None, :])
        return allowed.expand(len(q), allowed.shape[1], q.shape[1], k.shape[1])


def _pieces(number: int, pairs: int) -> tuple[Tensor, ...]:
    """Return 0..number - 1 in pieces that hold at most `ASKED` pairs, `pairs` for each number."""
    return torch.arange(number).split(max(1, ASKED // pairs)) if number else ()
