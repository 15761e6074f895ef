"""Padded and packed rows laid out as rows that hold one document each, from their first index.

Letters: B batch, T positions, N documents, L length of the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """Where the tokens of documents lie.

    Args:
        index: int [N, L], place of each token in the flattened [B * T]; 0 behind the end.
        valid: bool [N, L], False behind the end of a document.
    """

    index: Tensor
    valid: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Documents:
        """Return the documents of rows.

        Args:
            numbers: int [B, T], equal for the tokens of a document, -1 = padding; the tokens of a
                document lie behind each other, with nothing but padding between them.
        """
        batch, length = numbers.shape
        row = torch.arange(batch, device=numbers.device)[:, None] * (length + 1)
        places = (numbers >= 0).flatten().nonzero().flatten()
        name = (numbers + row).flatten()[places]
        _, document, counts = name.unique_consecutive(return_inverse=True, return_counts=True)
        longest = int(counts.max()) if len(counts) else 0
        along = torch.arange(len(places), device=numbers.device)
        along = along - (counts.cumsum(0) - counts)[document]
        index = places.new_zeros(len(counts), longest)
        index[document, along] = places
        valid = torch.arange(longest, device=numbers.device) < counts[:, None]
        return cls(index, valid)

    def take(self, x: Tensor) -> Tensor:
        """Return x [B, H, T, ...] as [N, H, L, ...], 0 behind the ends; a copy."""
        taken = x.transpose(1, 2).flatten(0, 1)[self.index]
        behind = ~self.valid.view(*self.valid.shape, *[1] * (taken.dim() - 2))
        return taken.masked_fill_(behind, 0.0).transpose(1, 2)

    def put(self, x: Tensor, batch: int, length: int) -> Tensor:
        """Return x [N, H, L, ...] as [batch, H, length, ...], 0 where no document has a token."""
        shape = x.shape[:2][1:] + x.shape[3:]
        flat = x.new_zeros(batch * length, *shape)
        flat[self.index[self.valid]] = x.transpose(1, 2)[self.valid]
        return flat.unflatten(0, (batch, length)).transpose(1, 2)
