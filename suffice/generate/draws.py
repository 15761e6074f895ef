"""Random numbers of the rows of a call."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

KEPT = 64  # numbers drawn at once


class Draws:
    """A sequence of numbers in [0, 1) for each row, which depends on the seed and the row alone.

    Drawn on the CPU, so that every device has the same.

    Args:
        seed: of the call.
        rows: numbers of the rows.
        device: where the numbers are used.

    Example:
        >>> one, both = Draws(5, [1], "cpu"), Draws(5, [0, 1], "cpu")
        >>> bool(one.next()[0] == both.next()[1])
        True
    """

    def __init__(self, seed: int, rows: list[int], device: torch.device | str) -> None:
        self.generators = [torch.Generator().manual_seed(_seed(seed, row)) for row in rows]
        self.device = device
        self.kept: list[Tensor] = []

    def next(self) -> Tensor:
        """Return the next number of each row, float64 [rows]."""
        if not self.kept:
            drawn = [torch.rand(KEPT, generator=g, dtype=torch.float64) for g in self.generators]
            self.kept = list(torch.stack(drawn, dim=1).to(self.device).unbind())[::-1]
        return self.kept.pop()


def _seed(seed: int, row: int) -> int:
    digest = hashlib.blake2b(f"{seed} {row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
