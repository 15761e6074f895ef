"""What a mixing must know about the rows of a batch, and how it brings real tokens together.

Letters: B batch, S positions of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.finite import readable


@dataclass(frozen=True)
class Rows:
    """The rows of a batch; None where every row is simply 0..S-1.

    Args:
        valid: bool [B, S], True = real token.
        positions: int [B, S], the real tokens of its document before each one; at padding too.
        documents: int [B, S], the number of the document each one belongs to.
    """

    valid: Tensor | None = None
    positions: Tensor | None = None
    documents: Tensor | None = None

    def order(self) -> Tensor | None:
        """Return the index [B, S] that brings real tokens to the front; None if they stand there.

        It costs a sort, so a call asks once and hands it to the methods below.
        """
        if self.valid is None:
            return None
        if readable(self.valid) and not bool((self.valid[:, 1:] & ~self.valid[:, :-1]).any()):
            return None  # padding on the right, as most batches have it: nothing to move
        length = self.valid.shape[1]
        at = torch.arange(length, device=self.valid.device)
        return torch.argsort(at.where(self.valid, at + length), dim=1)

    def gathered(self, x: Tensor, order: Tensor | None) -> Tensor:
        """Return x [B, S, ...], the real tokens of each row first, in their order, then zeros."""
        if self.valid is not None:
            x = x.masked_fill(~self.valid.view(*self.valid.shape, *[1] * (x.dim() - 2)), 0)
        return x if order is None else _picked(x, order)

    def scattered(self, x: Tensor, order: Tensor | None) -> Tensor:
        """Return gathered x [B, S, ...] with every real token where it came from.

        At padding stands what a neighbour holds.
        """
        if order is None:
            return x
        return _picked(x, (self.valid.long().cumsum(dim=1) - 1).clamp(min=0))  # type: ignore[union-attr]

    def front(self, order: Tensor | None) -> Rows:
        """Return what holds for gathered rows; padding, last and zero, needs no mention."""
        if self.documents is None or self.positions is None:
            return Rows()
        return Rows(
            positions=self.gathered(self.positions, order),
            documents=self.gathered(self.documents, order),
        )


def _picked(x: Tensor, index: Tensor) -> Tensor:
    """Return x [B, S, ...] with the positions `index` [B, S] of each row.

    As rows of one long matrix: the gradient of a gather along an inner axis is slow.
    """
    batch, keys = index.shape
    starts = keys * torch.arange(batch, device=index.device)
    flat = x.flatten(0, 1).index_select(0, (index + starts[:, None]).flatten())
    return flat.unflatten(0, (batch, keys))
