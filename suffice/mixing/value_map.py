"""A learned map of values along the sequence, V' = W V + b: the value and its module.

Letters: B batch, S keys, G key/value heads, E head width, F features of a map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from suffice.errors import ShapeError, check_known
from suffice.mixing.base import Mixing, RowLayout
from suffice.utils.torch_compat import finite

Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of W and of b


class WeightSpan(NamedTuple):
    """The adjacent weights of a map that mix the latest values at a position, its own last."""

    first: int
    count: int
    bias: int  # index of the bias among those of a map


class ValueMap(nn.Module, ABC):
    """W [maps, ...] and b [maps, ...] of one layer; maps is 1 (shared) or the key/value heads.

    Real tokens are brought together first, so that padding may be anywhere and costs no map of
    its own; padded values are read as zero.
    """

    local: bool = True
    """True if some positions never read some others, in any row."""

    def __init__(
        self,
        mixing: LearnedMixing,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.has_rows, self.form = mixing.max_length is not None, type(mixing).__name__
        weight, bias = mixing.shapes(causal=causal)
        self.weight = nn.Parameter(torch.empty(maps, *weight, device=device, dtype=dtype))
        if mixing.bias:
            self.bias = nn.Parameter(torch.zeros(maps, *bias, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        if not self.weight.is_meta:  # torch would load its compiler to fill nothing
            self.start(mixing.init)

    @abstractmethod
    def start(self, init: str) -> None:
        """Fill W in place."""

    def mask_weight(self, weight: Tensor) -> Tensor:
        """Return W with zeros where it is never read."""
        return weight

    @abstractmethod
    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W x of x [B, maps, S, F], the real tokens of each row first."""

    @abstractmethod
    def locate(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the index of W[q, k] within a map, and whether a causal layer reads it.

        Positions broadcast to [B, T, S]; a negative k is never read.
        """

    def bias_at(self, positions: Tensor) -> Tensor:
        """Return b of positions [B, T]: broadcasts to [B, maps, T, 1]."""
        return self.bias[:, positions].transpose(0, 1)[..., None]

    @abstractmethod
    def span(self, position: int) -> WeightSpan:
        """Return the weights that a position of a causal layer reads."""

    def check(self, keys: int) -> None:
        """Raise ShapeError if W has rows, but fewer than `keys`."""
        longest = self.weight.shape[1] if self.has_rows else keys
        if keys > longest:
            raise ShapeError(
                f"{keys} keys are more than the {longest} this {self.form} was built for; give at "
                f"most {longest}, or extend the layer: suffice.extend(layer, {keys})."
            )

    def forward(self, k: Tensor, v: Tensor, rows: RowLayout) -> tuple[Tensor, Tensor]:
        """Return k and V' = W V + b; padded values are read as zero, V' at padding is unused."""
        batch, groups, keys, width = v.shape
        self.check(rows.longest(keys))
        maps = len(self.weight)
        order = rows.order()
        v = rows.gather(v.transpose(1, 2), order)
        # one map for all: the heads are features of one wide head, and no copy is made
        x = v.reshape(batch, keys, maps, groups * width // maps).transpose(1, 2)
        mixed = self._mix(x, rows.after_gather(order))
        mixed = mixed.transpose(1, 2).reshape(batch, keys, groups, width)
        return k, rows.scatter(mixed, order).transpose(1, 2)

    def _mix(self, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W x + b, NaN for exactly the positions that may read something non-finite."""
        weight = self.mask_weight(self.weight)
        if (not self.local and rows.documents is None) or finite(x):
            return self._affine(weight, x, rows)
        bad = ~x.isfinite()
        reads = self.mask_weight(torch.ones_like(self.weight))
        reads_bad = self.product(reads, bad.to(reads.dtype), rows) > 0.0
        return self._affine(weight, x.masked_fill(bad, 0.0), rows).masked_fill(reads_bad, torch.nan)

    def _affine(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        mixed = self.product(weight, x, rows)
        if self.bias is None:
            return mixed
        positions = rows.positions
        if rows.documents is None:
            positions = torch.arange(x.shape[2], device=x.device)[None]
        return mixed + self.bias_at(positions).to(mixed.dtype)  # autocast gives half sums

    def continued(self, past: Tensor, v: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return V' [B, G, T, E] of new positions of a causal layer, as `forward` would give them.

        Args:
            past: [B, G, P, E], the values before them that W reads, 0 at padding.
            v: [B, G, T, E], the new values, 0 at padding.
            q: int [B or 1, T], the positions of v.
            k: int [B or 1, P + T], those of past and v.
        """
        if q.numel() and not torch.compiler.is_compiling():  # there the index below raises
            self.check(int(q.max()) + 1)
        index, inside = self.locate(q[:, :, None], k[:, None, :])
        weight = self.weight[(slice(None), *index)].transpose(0, 1) * inside[:, None]
        x = torch.cat([past, v], dim=2)
        mixed = torch.matmul(weight.to(x.dtype), x)
        return mixed if self.bias is None else mixed + self.bias_at(q).to(mixed.dtype)

    def extra_repr(self) -> str:
        """Show the shapes in the printed module."""
        maps, *sizes = self.weight.shape
        return f"{sizes}, maps={maps}, bias={self.bias is not None}, causal={self.causal}"


class LearnedMixing(Mixing, base=True):
    """Base of V' = W V + b; a subclass is a dataclass with the fields below and its sizes."""

    starts: ClassVar[tuple[str, ...]]
    """The legal values of `init`."""

    module: ClassVar[type[ValueMap]]

    per_head: bool
    bias: bool
    init: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(f"init of {type(self).__name__}", self.init, self.starts)

    @abstractmethod
    def shapes(self, *, causal: bool) -> Shapes:
        """Return the shapes of W and of b of one map."""

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:
        """Count W and b."""
        weight, bias = self.shapes(causal=causal)
        return (num_kv_heads if self.per_head else 1) * (prod(weight) + self.bias * prod(bias))

    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module that holds W and b."""
        maps = num_kv_heads if self.per_head else 1
        return self.module(self, maps, causal=causal, device=device, dtype=dtype)
