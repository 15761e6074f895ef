"""Indices of tiles: at regular steps, which are views, or gathered block by block, which copy.

Letters: B batch, H heads, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 8  # indices; below, adding block by block costs more than index by index


@dataclass(frozen=True)
class Run:
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
        """Return the indices [tiles, count]."""
        tiles = torch.arange(self.tiles)[:, None] * self.tile_step
        return self.start + tiles + torch.arange(self.count) * self.step

    def part(self, first: int, last: int) -> Run:
        """Return the tiles first to last - 1."""
        return Run(
            self.start + first * self.tile_step, last - first, self.tile_step, self.count, self.step
        )

    def add(self, total: Tensor, tiles: Tensor) -> None:
        """Add tiles [B, H, tiles, count, ...] to where they come from in total [B, H, T, ...]."""
        if self.tile_step == 0:
            Run(self.start, 1, 0, self.count, self.step).view(total).add_(tiles.sum(2, True))
            return
        apart, between = divmod(self.tile_step, self.step)
        if self.tiles == 1 or between or apart >= self.count:
            self.view(total).add_(tiles)
            return
        for first in range(0, self.count, apart):  # tiles overlap: one shift at a time
            piece = tiles[:, :, :, first : first + apart]
            start = self.start + first * self.step
            shifted = Run(start, self.tiles, self.tile_step, piece.shape[3], self.step)
            shifted.view(total).add_(piece)


@dataclass(frozen=True)
class Gathered:
    """Blocks of neighbouring indices: tile i holds the blocks that begin at starts[i].

    Args:
        starts: int [tiles, blocks]
        block: indices of a block.
    """

    starts: Tensor
    block: int

    @property
    def tiles(self) -> int:
        """Tiles."""
        return self.starts.shape[0]

    @property
    def count(self) -> int:
        """Indices of a tile."""
        return self.starts.shape[1] * self.block

    def view(self, x: Tensor) -> Tensor:
        """Return the gathered copy [B, H, tiles, count, ...] of x [B, H, T, ...]."""
        every = Run(0, x.shape[2] - self.block + 1, 1, self.block).view(x)
        taken = every.index_select(2, self.starts.flatten().to(x.device))
        return taken.reshape(*x.shape[:2], self.tiles, self.count, *x.shape[3:])

    def index(self) -> Tensor:
        """Return the indices [tiles, count]."""
        return (self.starts[..., None] + torch.arange(self.block)).flatten(1)

    def part(self, first: int, last: int) -> Gathered:
        """Return the tiles first to last - 1."""
        return Gathered(self.starts[first:last], self.block)

    def add(self, total: Tensor, tiles: Tensor) -> None:
        """Add tiles [B, H, tiles, count, ...] to where they come from in total [B, H, T, ...]."""
        if self.block < FEW:
            total.index_add_(2, self.index().flatten().to(total.device), tiles.flatten(2, 3))
            return
        pieces = tiles.unflatten(3, (-1, self.block))
        for tile, starts in enumerate(self.starts.tolist()):
            for place, start in enumerate(starts):
                total[:, :, start : start + self.block].add_(pieces[:, :, tile, place])
