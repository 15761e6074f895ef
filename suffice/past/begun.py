"""A compressive memory while a sequence is read in pieces.

Letters: B batch, H query heads, G key/value heads, T new positions, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.inference import usable
from suffice.past.infini import InfiniMemory


class Begun:
    """The sums over earlier segments, and the segment that is not in them yet."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.open: tuple[Tensor, ...] | None = None  # keys and values of the open segment

    @property
    def filled(self) -> int:
        """Positions of the open segment."""
        return 0 if self.open is None else self.open[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        kept = [x for x in (self.sums, *(self.open or ())) if x is not None]
        return sum(x.numel() * x.element_size() for x in kept)

    def read(self, memory: InfiniMemory, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what the memory tells new queries, and add their keys and values.

        Args:
            memory: of the layer.
            q: [B, H, T, D], before any rotation.
            k: [B, G, T, D], likewise.
            v: [B, G, T, E].
        """
        if self.sums is not None:
            (self.sums,) = usable((self.sums,))
        if self.open is not None:
            self.open = usable(self.open)
        told, at = [], 0
        while at < q.shape[2]:
            to = min(at + memory.segment - self.filled, q.shape[2])
            told.append(memory.told(q[:, :, at:to], self.sums, v))
            self._add(memory, k[:, :, at:to], v[:, :, at:to])
            at = to
        return torch.cat(told, dim=2) if told else memory.told(q, self.sums, v)

    def _add(self, memory: InfiniMemory, k: Tensor, v: Tensor) -> None:
        if self.open is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.open, (k, v), strict=True))
        self.open = k, v
        if self.filled == memory.segment:
            self.sums, self.open = memory.added(k, v, self.sums), None

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions are not compressed yet."""
        return 0 <= positions <= self.filled

    def drop(self, positions: int) -> None:
        """Take positions of the open segment back."""
        if self.open is not None and positions:
            left = self.filled - positions
            self.open = tuple(x[:, :, :left] for x in self.open) if left else None

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order."""
        self.sums = None if self.sums is None else self.sums.index_select(0, rows)
        if self.open is not None:
            self.open = tuple(x.index_select(0, rows) for x in self.open)
