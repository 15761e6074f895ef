"""What every learned map of values along the sequence shares: V' = W V + b.

Letters: B batch, S keys, G key/value heads, E head width, F features of a map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.mixing.base import RowLayout
from suffice.torch_compat import finite


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
    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W x of x [B, maps, S, F], real tokens first; `rows` are moved along."""

    @abstractmethod
    def offset(self, keys: int, rows: RowLayout) -> Tensor:
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

    def forward(self, k: Tensor, v: Tensor, rows: RowLayout) -> tuple[Tensor, Tensor]:
        """Return k and V' = W V + b; padded values are read as zero, V' at padding is unused."""
        batch, groups, keys, width = v.shape
        maps = len(self.weight)
        order = rows.order()
        v = rows.gather(v.transpose(1, 2), order)
        # one map for all: the heads are features of one wide head, and no copy is made
        x = v.reshape(batch, keys, maps, groups * width // maps).transpose(1, 2)
        mixed = self._mixed(x, rows.after_gather(order))
        mixed = mixed.transpose(1, 2).reshape(batch, keys, groups, width)
        return k, rows.scatter(mixed, order).transpose(1, 2)

    def _mixed(self, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W x + b, NaN for exactly the positions that may read something non-finite."""
        weight = self.used(self.weight)
        hides = self.local or rows.documents is not None
        if not hides or finite(x):
            return self._sum(weight, x, rows)
        bad = ~x.isfinite()
        reads = self.used(torch.ones_like(self.weight))
        seen = self.product(reads, bad.to(reads.dtype), rows) > 0.0
        return self._sum(weight, x.masked_fill(bad, 0.0), rows).masked_fill(seen, torch.nan)

    def _sum(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        mixed = self.product(weight, x, rows)
        if self.bias is None:
            return mixed
        return mixed + self.offset(x.shape[2], rows).to(mixed.dtype)  # autocast gives half sums

    def extra_repr(self) -> str:
        """Show the form in the printed module."""
        maps, *sizes = self.weight.shape
        return f"{sizes}, maps={maps}, bias={self.bias is not None}, causal={self.causal}"


SIDE = 32  # positions; the least side at which a product runs at the speed of the machine


def offsets(width: int, *, causal: bool) -> int:
    """Return how many diagonals lie at a distance below `width`, on one side or on both."""
    return width if causal else 2 * width - 1


def cut(keys: int, before: int, after: int) -> tuple[int, int]:
    """Return how many sides S positions are cut into and how long each is.

    A side is at least as long as what its positions read outside of it, so that all of that lies
    in the two neighbours. One side, which reads no other, where that is less work.
    """
    before, after = reach(keys, before, after)
    count = max(-(-keys // max(SIDE, before, after)), 1)
    side = max(-(-keys // count), before, after)
    if keys * keys <= count * side * (side + before + after):
        return 1, keys
    return count, side


def reach(keys: int, before: int, after: int) -> tuple[int, int]:
    """Return how far back and ahead anything can be read within S positions."""
    return min(before, max(keys - 1, 0)), min(after, max(keys - 1, 0))


def flops(keys: int, before: int, after: int, features: int) -> int:
    """Count the FLOPs of `product` for one sample of S positions with F features."""
    count, side = cut(keys, before, after)
    before, after = reach(keys, before, after)
    read = side if count == 1 else side + before + after
    return 2 * count * side * read * features


def product(band: Tensor, x: Tensor, before: int) -> Tensor:
    """Return the map of a band times x [B, maps, S, F].

    Args:
        band: [B or 1, maps, S or 1, offsets]; one row stands for all.
        x: the values; beyond both ends they are zero.
        before: how far back column 0 reads.
    """
    keys, after = x.shape[2], band.shape[-1] - 1 - before
    least, most = reach(keys, before, after)
    band = band[..., before - least : before + most + 1]
    count, side = cut(keys, before, after)
    padding = count * side - keys
    maps = _skewed(_rows(band, count, side, padding), side)
    values = F.pad(x, (0, 0, 0, padding)).unflatten(2, (count, side))
    if count == 1:
        maps = maps[..., least : least + side]
    else:
        values = _with_neighbours(values, least, most)
    return torch.matmul(maps, values).flatten(2, 3)[:, :, :keys]


def same_document(positions: Tensor, before: int, after: int) -> Tensor:
    """Return where a band stays inside its document: bool [B, 1, S, offsets].

    Args:
        positions: int [B, S], position of each token within its document, one up at each step.
        before: how far back column 0 reads.
        after: how far ahead the last column reads.
    """
    far = -(before + positions.shape[1] + 1)
    there = F.pad(positions, (before, after), value=far).unfold(1, before + after + 1, 1)
    steps = torch.arange(-before, after + 1, device=positions.device)
    return (there == positions[..., None] + steps)[:, None]


def _rows(band: Tensor, count: int, side: int, padding: int) -> Tensor:
    """Return the band of each side: [B or 1, maps, N or 1, side, offsets]."""
    if band.shape[-2] == 1 != count * side:
        return band[..., None, :].expand(*band.shape[:-1], side, band.shape[-1])
    return F.pad(band, (0, 0, 0, padding)).unflatten(-2, (count, side))


def _skewed(band: Tensor, side: int) -> Tensor:
    """Return the dense map [..., side, side + offsets - 1] of a band [..., side, offsets].

    Row t moves t columns to the right: rows written one behind the other, each a column short.
    """
    columns = side + band.shape[-1] - 1
    flat = F.pad(band, (0, side)).flatten(-2)[..., : side * columns]
    return flat.unflatten(-1, (side, columns))


def _with_neighbours(values: Tensor, before: int, after: int) -> Tensor:
    """Return sides [B, maps, N, side, F] with the end of the one before, the start of the next."""
    side = values.shape[3]
    parts = [values]
    if before:
        ends = values[:, :, :-1, side - before :]
        parts.insert(0, F.pad(ends, (0, 0, 0, 0, 1, 0)))
    if after:
        parts.append(F.pad(values[:, :, 1:, :after], (0, 0, 0, 0, 0, 1)))
    return torch.cat(parts, dim=3)
