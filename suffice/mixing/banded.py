"""An alignment of a few diagonals: each position mixes its neighbours with weights of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.mixing import band
from suffice.mixing.base import Mixing
from suffice.mixing.rows import Rows
from suffice.mixing.start import BAND, check_start, start_band
from suffice.mixing.value_map import Read, ValueMap


@dataclass(frozen=True)
class BandedAlignment(Mixing):
    """V' = W_A V + b with W_A[t, s] = 0 unless |t - s| < width; causal: unless 0 <= t - s < width.

    The weights are `weight` [maps, length, offsets], in the order of the positions they read:
    column j of row t is W_A[t, t - (width - 1) + j]. A causal layer has offsets = width, so its
    last column is a position's own value; any other has offsets = 2 * width - 1, own value in the
    middle. Columns that reach beyond the sequence are never used. `bias` [maps, length] is b, one
    number per position.

    A sequence shorter than `length` uses the first rows. Rows count from the first real token of
    each document, so padding may be anywhere, and no value is read across documents.

    Use it where the length is fixed, nearby positions are what a value should be mixed with, and
    which neighbour counts depends on the place; with a window in the pattern the layer reads
    window + width - 1 positions and no more. Without a fixed length use ToeplitzAlignment.

    Args:
        length: the longest sequence of keys, tokens, >= 1.
        width: positions back, itself included (and as many ahead, if not causal), >= 1.
        per_head: one W_A for each key/value head instead of one for all.
        bias: with the b of above.
        init: "identity" (starts as no mixing at all) or "glorot" (uniform, a sum over the
            diagonals varies as the values do).

    Raises:
        ConfigError: if length or width is below 1, width exceeds length, or init is unknown.

    Cost: length * offsets + length parameters (times the key/value heads if per_head); about
        2 S (side + offsets - 1) W FLOPs for a side of 32 positions or the width if that is more;
        memory grows with S * (side + offsets).
    Example:
        >>> BandedAlignment(length=64, width=4).parameters(num_kv_heads=4, causal=True)
        320

    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: all but a few diagonals
    of W_A are zero.
    """

    length: int
    width: int
    per_head: bool = False
    bias: bool = True
    init: str = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.width <= self.length:
            raise ConfigError(
                f"BandedAlignment(length={self.length!r}, width={self.width!r}): give the longest "
                "input, >= 1, and a width from 1 to that length."
            )
        check_start("BandedAlignment", self.init, BAND)

    @property
    def history(self) -> int:  # type: ignore[override]
        """The width, less the value's own position."""
        return self.width - 1

    @property
    def max_length(self) -> int:  # type: ignore[override]
        """The rows of W_A, in tokens."""
        return self.length

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:
        """Count W_A's diagonals and b."""
        maps = num_kv_heads if self.per_head else 1
        return maps * self.length * (band.offsets(self.width, causal=causal) + self.bias)

    def flops(
        self,
        keys: int,
        num_kv_heads: int,  # noqa: ARG002 - shared or per head costs the same
        value_width: int,
        *,
        causal: bool = False,
    ) -> int:
        """Count the products of the sides the sequence is cut into."""
        back = self.width - 1
        return band.flops(keys, back, 0 if causal else back, value_width)

    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module that holds the diagonals and b."""
        maps = num_kv_heads if self.per_head else 1
        return BandedMap(self, maps, causal=causal, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return narrow, wide and per-head forms."""
        return (
            cls(9, 2),
            cls(9, 9, bias=False, init="glorot"),
            cls(9, 3, per_head=True, init="glorot"),
        )


class BandedMap(ValueMap):
    """The diagonals of W_A [maps, length, offsets] and b [maps, length]."""

    def __init__(
        self,
        alignment: BandedAlignment,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.back = alignment.width - 1
        offsets = band.offsets(alignment.width, causal=causal)
        super().__init__(
            (maps, alignment.length, offsets),
            (maps, alignment.length) if alignment.bias else None,
            causal=causal,
            device=device,
            dtype=dtype,
        )
        start_band(self.weight, alignment.init, self.back)

    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """Return W_A[q, k]: row q, the column of the distance."""
        column = k - q + self.back
        inside = (column >= 0) & (k <= q) & (k >= 0)
        return self.weight[:, q, column.clamp(0, self.back)].transpose(0, 1) * inside[:, None]

    def offsets(self, q: Tensor) -> Tensor:
        """Return b of positions."""
        return self.bias[:, q].transpose(0, 1)[..., None]

    def check(self, keys: int) -> None:
        """Refuse more positions than W_A has rows."""
        length = self.weight.shape[1]
        if keys > length:
            raise ShapeError(
                f"{keys} keys are more than the {length} this BandedAlignment was built for; give "
                f"at most {length}, or extend the layer: suffice.extend(layer, {keys})."
            )

    def reads(self, position: int) -> Read:
        """Return where the row of a position lies."""
        self.check(position + 1)
        count = min(position, self.back) + 1
        return Read((position + 1) * (self.back + 1) - count, count, position)

    def product(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
        """Return W_A x; a document of a packed row starts at row 0."""
        keys = x.shape[2]
        self.check(keys)
        if rows.documents is None:
            return band.product(weight[None, :, :keys], x, self.back)
        own = weight[:, rows.positions].transpose(0, 1)  # [B, maps, S, offsets]
        inside = band.same_document(rows.positions, self.back, own.shape[-1] - 1 - self.back)
        return band.product(own * inside, x, self.back)

    def offset(self, keys: int, rows: Rows) -> Tensor:
        """Return b of each position."""
        if rows.documents is None:
            return self.bias[:, :keys, None]
        return self.bias[:, rows.positions].transpose(0, 1)[..., None]
