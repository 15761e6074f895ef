"""What every learned map of values along the sequence shares: V' = W V + b.

Letters: B batch, S keys, G key/value heads, E head width, F features of a map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from suffice.finite import finite
from suffice.mixing.rows import Rows


class Read(NamedTuple):
    """What a position of a causal layer reads: the latest values, its own last.

    Args:
        first: where the weight of the first of them stands among the weights of a map.
        count: how many there are; their weights follow each other.
        offset: where the number that is added stands among those of a map.
    """

    first: int
    count: int
    offset: int


class ValueMap(nn.Module, ABC):
    """W and b of one layer, in the form of a subclass.

    Real tokens are brought together first, so that padding may be anywhere and costs no map of
    its own; padded values are read as zero.

    Args:
        weight: shape of W in this form, maps first: 1 (shared) or one for each key/value head.
        bias: shape of b, maps first; None = without.
        causal: whether the layer is; a causal form reads no later value.
        device: where they live.
        dtype: of W and b.

    Shapes:
        k [B, G, S, D], v [B, G, S, E] -> k, v' of the same shapes
    """

    local: bool = True
    """True if some positions never read some others, in whatever row."""

    def __init__(
        self,
        weight: tuple[int, ...],
        bias: tuple[int, ...] | None,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(weight, device=device, dtype=dtype))
        if bias is None:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(torch.zeros(bias, device=device, dtype=dtype))

    def used(self, weight: Tensor) -> Tensor:
        """Return W with zeros where the form never reads."""
        return weight

    @abstractmethod
    def product(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
        """Return W x of x [B, maps, S, F], real tokens first; `rows` are moved along."""

    @abstractmethod
    def offset(self, keys: int, rows: Rows) -> Tensor:
        """Return b of S keys, broadcasting to [B, maps, S, F]."""

    @abstractmethod
    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """Return W[q, k] of positions that broadcast to [B, T, S]: [B, maps, T, S], causal."""

    @abstractmethod
    def offsets(self, q: Tensor) -> Tensor:
        """Return b of positions [B, T]: broadcasts to [B, maps, T, 1]."""

    @abstractmethod
    def reads(self, position: int) -> Read:
        """Return where one map keeps the weights of a position of a causal layer."""

    def continued(self, past: Tensor, v: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return V' [B, G, T, E] of new positions of a causal layer, as `forward` would give them.

        Args:
            past: [B, G, P, E], the values before them that W reads, 0 at padding.
            v: [B, G, T, E], theirs, 0 at padding.
            q: int [B or 1, T], the positions of v.
            k: int [B or 1, P + T], those of past and v.
        """
        if q.numel() and not torch.compiler.is_compiling():  # there entries refuses
            self.check(int(q.max()) + 1)
        weight = self.entries(q[:, :, None], k[:, None, :])
        x = torch.cat([past, v], dim=2)
        mixed = torch.matmul(weight.to(x.dtype), x)
        if self.bias is None:
            return mixed
        return mixed + self.offsets(q).to(mixed.dtype)

    def check(self, keys: int) -> None:
        """Refuse more positions than W has; a form for any length refuses none."""

    def forward(self, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return k and V' = W V + b; padded values are read as zero, V' at padding is unused."""
        batch, groups, keys, width = v.shape
        maps = len(self.weight)
        order = rows.order()
        v = rows.gathered(v.transpose(1, 2), order)
        # one map for all: the heads are features of one wide head, and no copy is made
        x = v.reshape(batch, keys, maps, groups * width // maps).transpose(1, 2)
        mixed = self._mixed(x, rows.front(order))
        mixed = mixed.transpose(1, 2).reshape(batch, keys, groups, width)
        return k, rows.scattered(mixed, order).transpose(1, 2)

    def _mixed(self, x: Tensor, rows: Rows) -> Tensor:
        """Return W x + b, NaN for exactly the positions that may read something non-finite."""
        weight = self.used(self.weight)
        hides = self.local or rows.documents is not None
        if not hides or finite(x):
            return self._sum(weight, x, rows)
        bad = ~x.isfinite()
        reads = self.used(torch.ones_like(self.weight))
        seen = self.product(reads, bad.to(reads.dtype), rows) > 0.0
        return self._sum(weight, x.masked_fill(bad, 0.0), rows).masked_fill(seen, torch.nan)

    def _sum(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
        mixed = self.product(weight, x, rows)
        if self.bias is None:
            return mixed
        return mixed + self.offset(x.shape[2], rows).to(mixed.dtype)  # autocast gives half sums

    def extra_repr(self) -> str:
        """Show the form in the printed module."""
        maps, *sizes = self.weight.shape
        return f"{sizes}, maps={maps}, bias={self.bias is not None}, causal={self.causal}"
