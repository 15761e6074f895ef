"""Tiles of queries and keys: each is one dense product, with a mask where it is not full.

Where tiles lie at regular steps (a window, global tokens) queries and keys are strided views and
nothing is copied; where they do not (random blocks) the keys are gathered block by block.

Letters: T queries, S keys; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

MIN_BLOCK = 8  # indices; below, adding block by block costs more than index by index
PAIRS_AT_ONCE = 1 << 20  # pairs whose permission is evaluated at a time
Allowed = Callable[[Tensor, Tensor], Tensor]  # positions of queries and keys -> bool


@dataclass(frozen=True)
class Indices:
    """Indices at regular steps: tile i holds start + i * tile_step + j * step for j < count."""

    start: int
    tiles: int
    tile_step: int
    count: int
    step: int = 1

    def view(self, x: Tensor) -> Tensor:
        """Return x [B, H, T, ...] as [B, H, tiles, count, ...]; nothing is copied."""
        batch, heads, along, *rest = x.stride()
        return x.as_strided(
            (*x.shape[:2], self.tiles, self.count, *x.shape[3:]),
            (batch, heads, self.tile_step * along, self.step * along, *rest),
            x.storage_offset() + self.start * along,
        )

    def index(self) -> Tensor:
        tiles = torch.arange(self.tiles)[:, None] * self.tile_step
        return self.start + tiles + torch.arange(self.count) * self.step

    def part(self, first: int, last: int) -> Indices:
        start = self.start + first * self.tile_step
        return Indices(start, last - first, self.tile_step, self.count, self.step)

    def add(self, total: Tensor, tiles: Tensor) -> None:
        """Add tiles [B, H, tiles, count, ...] at their indices to total [B, H, T, ...]."""
        apart, between = divmod(self.tile_step, self.step)
        if self.tiles == 1 or between or apart >= self.count:
            self.view(total).add_(tiles)
        elif self.tile_step == 0:
            self.part(0, 1).view(total).add_(tiles.sum(2, True))
        else:
            for first in range(0, self.count, apart):  # tiles overlap: one shift at a time
                piece = tiles[:, :, :, first : first + apart]
                start = self.start + first * self.step
                shifted = Indices(start, self.tiles, self.tile_step, piece.shape[3], self.step)
                shifted.view(total).add_(piece)


@dataclass(frozen=True)
class Gathered:
    """Blocks of neighbouring indices: tile i holds the blocks that begin at starts[i]."""

    starts: Tensor  # int [tiles, blocks]
    block: int  # indices of a block

    @property
    def tiles(self) -> int:
        return self.starts.shape[0]

    @property
    def count(self) -> int:
        return self.starts.shape[1] * self.block

    def view(self, x: Tensor) -> Tensor:
        """Return the gathered copy [B, H, tiles, count, ...] of x [B, H, T, ...]."""
        blocks = Indices(0, x.shape[2] - self.block + 1, 1, self.block).view(x)
        taken = blocks.index_select(2, self.starts.flatten().to(x.device))
        return taken.reshape(*x.shape[:2], self.tiles, self.count, *x.shape[3:])

    def index(self) -> Tensor:
        return (self.starts[..., None] + torch.arange(self.block)).flatten(1)

    def part(self, first: int, last: int) -> Gathered:
        return Gathered(self.starts[first:last], self.block)

    def add(self, total: Tensor, tiles: Tensor) -> None:
        if self.block < MIN_BLOCK:
            total.index_add_(2, self.index().flatten().to(total.device), tiles.flatten(2, 3))
            return
        pieces = tiles.unflatten(3, (-1, self.block))
        for tile, starts in enumerate(self.starts.tolist()):
            for place, start in enumerate(starts):
                total[:, :, start : start + self.block].add_(pieces[:, :, tile, place])


@dataclass(frozen=True)
class TileSet:
    """Tiles of queries and the same number of tiles of keys."""

    queries: Indices
    keys: Indices | Gathered
    allowed: Tensor | None  # bool [n or 1, r or 1, c]; None: every pair of the tiles

    def narrow(self, first: int, last: int) -> TileSet:
        mask = self.allowed
        if mask is not None and len(mask) > 1:
            mask = mask[first:last]
        return TileSet(self.queries.part(first, last), self.keys.part(first, last), mask)

    @property
    def pairs(self) -> int:
        return self.queries.tiles * self.queries.count * self.keys.count


@dataclass(frozen=True)
class Grid:
    """A sequence, or every step-th position of one: index i of it is start + i * step."""

    q_start: int  # first query index
    k_start: int  # first key index
    q_offset: int  # position of query index 0
    step: int  # distance of neighbours
    queries: int  # T
    keys: int  # S

    def parts(
        self,
        queries: Indices,
        keys: Indices | Gathered,
        allowed: Allowed,
        remaining: Tensor | None = None,
    ) -> list[TileSet]:
        """Return tiles of grid indices and shared masks, moved to the whole sequence.

        `remaining`: bool [tiles, r or 1, c], False = a pair that another part has.
        """
        queries, keys = self._move(queries, self.q_start), self._move(keys, self.k_start)
        at_once = max(1, PAIRS_AT_ONCE // (queries.count * keys.count))
        masks = []
        for first in range(0, queries.tiles, at_once):
            last = min(first + at_once, queries.tiles)
            mask = self._mask(queries.part(first, last), keys.part(first, last), allowed)
            masks.append(mask if remaining is None else mask & remaining[first:last])
        mask = torch.cat(masks)
        changes = (mask[1:] != mask[:-1]).flatten(1).any(1).nonzero().flatten() + 1
        if len(changes) > mask.shape[0] // 4:
            return [TileSet(queries, keys, _narrow(mask))]
        ends = [0, *changes.tolist(), queries.tiles]
        return [
            TileSet(queries.part(a, b), keys.part(a, b), _narrow(mask[a : a + 1]))
            for a, b in pairwise(ends)
            if bool(mask[a].any())
        ]

    def allowed(self, queries: Indices, keys: Indices, allowed: Allowed) -> Tensor:
        """Return the mask [tiles, r, c] of tiles given by indices of the grid."""
        queries, keys = self._move(queries, self.q_start), self._move(keys, self.k_start)
        return self._mask(queries, keys, allowed)

    def positions(self, keys: Tensor) -> Tensor:
        return self.k_start + keys * self.step

    def _mask(self, queries: Indices, keys: Indices | Gathered, allowed: Allowed) -> Tensor:
        q, k = self.q_offset + queries.index(), keys.index()
        return allowed(q[..., None], k[:, None]).expand(queries.tiles, queries.count, keys.count)

    def _move(self, run, start: int):
        if isinstance(run, Gathered):
            return Gathered(start + run.starts, run.block)  # only ever with step 1
        return Indices(
            start + run.start * self.step,
            run.tiles,
            run.tile_step * self.step,
            run.count,
            run.step * self.step,
        )


def _narrow(mask: Tensor) -> Tensor | None:
    """Return a mask [n, r, c] as small as it goes: None where all is allowed, one row for all."""
    if bool(mask.all()):
        return None
    return (mask[:, :1] if bool((mask == mask[:, :1]).all()) else mask).clone()
