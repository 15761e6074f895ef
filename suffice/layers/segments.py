"""Infini's memory of earlier segments in the state of a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.memory.past import InfiniState


class Segments:
    """Infini's memory of earlier segments: of all rows together, or of each that counts its own."""

    def __init__(self) -> None:
        self.rows = [InfiniState()]

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def recall(
        self,
        past: nn.Module,
        unrotated: tuple[Tensor, ...],
        local: Tensor,
        valid: Tensor | None,
    ) -> Tensor:
        """Return the outputs of new positions, and add their keys and values."""
        batch = len(local)
        if valid is None and len(self.rows) == 1:
            return past.gated(self.rows[0].read(past, *unrotated), local)
        if len(self.rows) != batch:
            self._split(batch, local.device)
        out = local.clone()
        for number, row in enumerate(self.rows):
            real = slice(None) if valid is None else valid[number]
            row_inputs = (x[number : number + 1, :, real] for x in unrotated)
            recalled = row.read(past, *row_inputs)
            out[number, :, real] = past.gated(recalled, local[number : number + 1, :, real])[0]
        return out

    def _split(self, batch: int, device: torch.device) -> None:
        (shared,) = self.rows
        self.rows = [_copied(shared) for _ in range(batch)]
        for number, row in enumerate(self.rows):
            row.select(torch.tensor([number], device=device))

    def can_drop(self, places: Tensor | None, positions: int) -> bool:
        """Return whether the last positions can be removed; places as of `StepPositions.cached`."""
        pairs = zip(self.rows, self._real(places, positions), strict=True)
        return all(row.can_drop(real) for row, real in pairs)

    def drop_last(self, places: Tensor | None, positions: int) -> None:
        for row, real in zip(self.rows, self._real(places, positions), strict=True):
            row.drop(real)

    def _real(self, places: Tensor | None, positions: int) -> list[int]:
        if places is None:
            return [positions] * len(self.rows)
        counts = (places[:, places.shape[1] - positions :] >= 0).sum(dim=1).tolist()
        return counts[: len(self.rows)]  # rows that are together are alike

    def select(self, rows: Tensor) -> None:
        if len(self.rows) == 1:
            self.rows[0].select(rows)
        else:
            self.rows = [_copied(self.rows[number]) for number in rows.tolist()]

    def reset(self) -> None:
        self.rows = [InfiniState()]


def _copied(row: InfiniState) -> InfiniState:
    copy = InfiniState()
    copy.sums, copy.open = row.sums, row.open
    return copy
