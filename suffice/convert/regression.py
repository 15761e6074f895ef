"""The output map is refitted last: what it reads has changed, what it should give has not.

Letters: N positions, F features that an output map reads, M d_model.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from suffice.convert.maps import Maps
from suffice.convert.moments import RIDGE


class Regression:
    """Sums for the least squares of a layer's output on what another layer's output map reads.

    Args:
        features: F.
        outputs: M.
        bias: whether the output map has one.
    """

    def __init__(self, features: int, outputs: int, *, bias: bool) -> None:
        self.bias = bias
        size = features + bias
        self.gram = torch.zeros(size, size, dtype=torch.float64)
        self.cross = torch.zeros(size, outputs, dtype=torch.float64)
        self.energy = 0.0

    def add(self, z: Tensor, y: Tensor) -> None:
        """Take features [N, F] and wanted outputs [N, M]."""
        z, y = z.double().cpu(), y.double().cpu()
        if self.bias:
            z = torch.nn.functional.pad(z, (0, 1), value=1.0)
        self.gram += z.T @ z
        self.cross += z.T @ y
        self.energy += float(y.square().sum())

    def refitted(self, maps: Maps) -> Maps:
        """Return the maps with the output map that fits best.

        The ridge pulls towards the map that is there, so that the fit is never worse than it.
        """
        before = self._rows(maps)
        ridge = RIDGE * self.gram.diagonal().mean().clamp(min=1e-12)
        inverted = self.gram + ridge * torch.eye(len(self.gram), dtype=self.gram.dtype)
        rows = before + torch.linalg.solve(inverted, self.cross - self.gram @ before)
        if not self.bias:
            return replace(maps, o=rows.view_as(maps.o))
        return replace(maps, o=rows[:-1].view_as(maps.o), offset=rows[-1])

    def error(self, maps: Maps) -> float:
        """Return the root mean square of the output's error over that of the output."""
        rows = self._rows(maps)
        lost = (rows * (self.gram @ rows - 2 * self.cross)).sum() + self.energy
        return math.sqrt(max(float(lost), 0.0) / max(self.energy, 1e-300))

    def _rows(self, maps: Maps) -> Tensor:
        rows = maps.o.flatten(0, 1)
        return torch.cat([rows, maps.offset[None]]) if self.bias else rows
