"""Mixings: maps along the sequence that values, or keys and values, pass before the kernel.

Letters: B batch, S keys, G key/value heads, D and E head widths, R keys after the mixing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from suffice.utils.records import Axis
from suffice.utils.torch_compat import readable


class Mixing(Axis, ABC, family="mixing"):
    """Base of the mixings."""

    mixes: bool = True
    """True if values of different positions meet before the kernel."""

    keeps_keys: bool = True
    """False if the kernel no longer reads one key per position (Linformer)."""

    max_length: int | None = None
    """The longest key sequence, in tokens; None: unlimited."""

    history: int | None = 0
    """Earlier values that a causal layer reads at a position; None: all of them."""

    @abstractmethod
    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:
        """Count the learned numbers of a layer, causal or not."""

    def reads(self, keys: int) -> int:
        """Return how many keys the kernel reads of S: S unless the mixing shortens the sequence."""
        return keys

    @abstractmethod
    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:
        """Count the FLOPs (2 per multiply-add) of mixing S keys; value_width = G * E."""

    @abstractmethod
    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module: (k [B, G, S, D], v [B, G, S, E], rows) -> k' and v'.

        They are [B, G, R, D] and [B, G, R, E] with R = reads(S).
        """


@dataclass(frozen=True)
class RowLayout:
    """Padding and documents in the rows of a batch; None where every row is simply 0..S-1.

    Args:
        valid: bool [B, S], True = real token.
        positions: int [B, S], the real tokens of its document before each token; at padding too.
        documents: int [B, S], the number of the document of each token.
    """

    valid: Tensor | None = None
    positions: Tensor | None = None
    documents: Tensor | None = None

    def longest(self, keys: int) -> int:
        """Return the length of the longest document in rows of `keys` tokens, if it can be read."""
        if self.documents is None or not keys or not readable(self.positions):
            return keys
        return int(self.positions.max()) + 1

    def order(self) -> Tensor | None:
        """Return the index [B, S] that sorts real tokens to the front; None if already sorted."""
        if self.valid is None:
            return None
        if readable(self.valid) and not bool((self.valid[:, 1:] & ~self.valid[:, :-1]).any()):
            return None  # padding on the right, as most batches have it: nothing to move
        length = self.valid.shape[1]
        at = torch.arange(length, device=self.valid.device)
        return torch.argsort(at.where(self.valid, at + length), dim=1)

    def gather(self, x: Tensor, order: Tensor | None) -> Tensor:
        """Return x [B, S, ...] with the real tokens of each row first, in their order, then 0."""
        if self.valid is not None:
            x = x.masked_fill(~self.valid.view(*self.valid.shape, *[1] * (x.dim() - 2)), 0)
        return x if order is None else _take_positions(x, order)

    def scatter(self, x: Tensor, order: Tensor | None) -> Tensor:
        """Undo `gather`: real tokens return to their places; padding holds a neighbour's value."""
        if order is None:
            return x
        return _take_positions(x, (self.valid.long().cumsum(dim=1) - 1).clamp(min=0))  # type: ignore[union-attr]

    def after_gather(self, order: Tensor | None) -> RowLayout:
        """Return the layout of gathered rows, whose padding, last and zero, can be ignored."""
        if self.documents is None or self.positions is None:
            return RowLayout()
        return RowLayout(
            positions=self.gather(self.positions, order),
            documents=self.gather(self.documents, order),
        )


def _take_positions(x: Tensor, index: Tensor) -> Tensor:
    """Return x [B, S, ...] with the positions `index` [B, S] of each row.

    As rows of one long matrix: the gradient of a gather along an inner axis is slow.
    """
    batch, keys = index.shape
    starts = keys * torch.arange(batch, device=index.device)
    flat = x.flatten(0, 1).index_select(0, (index + starts[:, None]).flatten())
    return flat.unflatten(0, (batch, keys))


class Untouched(nn.Module):
    """The identity on keys and values."""

    def forward(self, k: Tensor, v: Tensor, rows: RowLayout) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return k and v."""
        return k, v


@dataclass(frozen=True)
class NoMixing(Mixing):
    """The kernel reads each value as it is, as in every attention but a few.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2. No difference.
    """

    mixes = False

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def build(self, **_: Any) -> nn.Module:
        """Return a module that returns the values."""
        return Untouched()
