"""What a layer reads of earlier segments, for rows that are padded or go on from a state.

Letters: B batch, H query heads, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from suffice.mixing import RowLayout
from suffice.past import InfiniState


class Raw(NamedTuple):
    """Queries [B, H, T, D] and keys [B, G, T, D] before any rotation, values [B, G, T, E]."""

    q: Tensor
    k: Tensor
    v: Tensor


def recall(past: nn.Module | None, raw: Raw, local: Tensor, rows: RowLayout) -> Tensor:
    """Return the outputs [B, H, T, E] with what earlier segments tell; None = they tell nothing."""
    if past is None:
        return local
    if rows.valid is None:
        return past(*raw, local)
    order = rows.order()
    first = [rows.gather(x.transpose(1, 2), order).transpose(1, 2) for x in (*raw, local)]
    return rows.scatter(past(*first).transpose(1, 2), order).transpose(1, 2)


class Recalled:
    """What is kept of earlier segments, for all rows together or for each that counts its own."""

    def __init__(self) -> None:
        self.rows = [InfiniState()]

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(row.nbytes for row in self.rows)

    def recall(self, past: nn.Module, raw: Raw, local: Tensor, valid: Tensor | None) -> Tensor:
        """Return the outputs of new positions, and add their keys and values."""
        batch = len(local)
        if valid is None and len(self.rows) == 1:
            return past.gated(self.rows[0].read(past, *raw), local)
        if len(self.rows) != batch:
            self._part(batch, local.device)
        out = local.clone()
        for number, row in enumerate(self.rows):
            real = slice(None) if valid is None else valid[number]
            own = Raw(*(x[number : number + 1, :, real] for x in raw))
            told = row.read(past, *own)
            out[number, :, real] = past.gated(told, local[number : number + 1, :, real])[0]
        return out

    def _part(self, batch: int, device: torch.device) -> None:
        """Give each row what all had together."""
        (whole,) = self.rows
        self.rows = [InfiniState() for _ in range(batch)]
        for number, row in enumerate(self.rows):
            row.sums, row.open = whole.sums, whole.open
            row.select(torch.tensor([number], device=device))

    def can_drop(self, places: Tensor | None, positions: int) -> bool:
        """Return whether the last positions can be taken back.

        Args:
            places: int [B, n], where the last n positions stood, -1 = padding; None = all were
                real.
            positions: how many.
        """
        pairs = zip(self.rows, self._real(places, positions), strict=True)
        return all(row.can_drop(real) for row, real in pairs)

    def drop_last(self, places: Tensor | None, positions: int) -> None:
        """Take the last positions back; arguments as `can_drop`."""
        for row, real in zip(self.rows, self._real(places, positions), strict=True):
            row.drop(real)

    def _real(self, places: Tensor | None, positions: int) -> list[int]:
        """Return how many of the last positions were real in each row."""
        if places is None:
            return [positions] * len(self.rows)
        counts = (places[:, places.shape[1] - positions :] >= 0).sum(dim=1).tolist()
        return counts[: len(self.rows)]  # rows that are together are alike

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order."""
        if len(self.rows) == 1:
            self.rows[0].select(rows)
            return
        chosen = []
        for number in rows.tolist():
            row = InfiniState()
            row.sums, row.open = self.rows[number].sums, self.rows[number].open
            chosen.append(row)
        self.rows = chosen

    def reset(self) -> None:
        """Forget everything."""
        self.rows = [InfiniState()]
