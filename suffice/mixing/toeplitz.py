"""An alignment that looks the same from every position, for input of any length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.mixing import band
from suffice.mixing.base import Mixing
from suffice.mixing.rows import Rows
from suffice.mixing.start import BAND, check_start, start_band
from suffice.mixing.value_map import Read, ValueMap


@dataclass(frozen=True)
class ToeplitzAlignment(Mixing):
    """V' = W_A V + b with W_A[t, s] = c[t - s] for |t - s| < width; causal: 0 <= t - s < width.

    The same few weights at every position: V'_t = sum_o c[o] V_{t-o} + b, a convolution along the
    sequence with one filter for all features of a head. The weights are `weight` [maps, offsets],
    in the order of the positions they read: column j is c[width - 1 - j], the weight of position
    t - (width - 1) + j. A causal layer has offsets = width, so its last column is a position's
    own value; any other has offsets = 2 * width - 1, own value in the middle. `bias` [maps] is b,
    one number for all positions. Values beyond the ends of a document count as zero.

    It reads any length, gives a shifted input shifted values, and streams with the last width - 1
    values. Padding may be anywhere, and no value is read across documents. Choose it for language
    models and wherever the length is not fixed.

    Args:
        width: positions back, itself included (and as many ahead, if not causal), >= 1.
        per_head: one filter for each key/value head instead of one for all.
        bias: with the b of above.
        init: "identity" (starts as no mixing at all) or "glorot" (uniform, a sum over the
            filter varies as the values do).

    Raises:
        ConfigError: if width < 1 or init is unknown.

    Cost: offsets + 1 parameters (times the key/value heads if per_head); about
        2 S (side + offsets - 1) W FLOPs for a side of 32 positions or the width if that is more.
    Example:
        >>> ToeplitzAlignment(width=4).parameters(num_kv_heads=4, causal=True)
        5

    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: W_A is a band of equal
    diagonals, which removes its fixed length; b is one number.
    """

    width: int
    per_head: bool = False
    bias: bool = True
    init: str = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise ConfigError(
                f"ToeplitzAlignment(width={self.width!r}): give the positions it reads back, >= 1."
            )
        check_start("ToeplitzAlignment", self.init, BAND)

    @property
    def history(self) -> int:  # type: ignore[override]
        """The width, less the value's own position."""
        return self.width - 1

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:
        """Count the filter and b."""
        maps = num_kv_heads if self.per_head else 1
        return maps * (band.offsets(self.width, causal=causal) + self.bias)

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
        """Return the module that holds the filter and b."""
        maps = num_kv_heads if self.per_head else 1
        return ToeplitzMap(self, maps, causal=causal, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return narrow, wide and per-head forms."""
        return (cls(2), cls(7, bias=False, init="glorot"), cls(3, per_head=True, init="glorot"))


class ToeplitzMap(ValueMap):
    """The filter [maps, offsets] and b [maps]."""

    def __init__(
        self,
        alignment: ToeplitzAlignment,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.back = alignment.width - 1
        super().__init__(
            (maps, band.offsets(alignment.width, causal=causal)),
            (maps,) if alignment.bias else None,
            causal=causal,
            device=device,
            dtype=dtype,
        )
        start_band(self.weight, alignment.init, self.back)

    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """Return c[q - k]."""
        column = k - q + self.back
        inside = (column >= 0) & (k <= q) & (k >= 0)
        return self.weight[:, column.clamp(0, self.back)].transpose(0, 1) * inside[:, None]

    def offsets(self, q: Tensor) -> Tensor:  # noqa: ARG002 - the same everywhere
        """Return b."""
        return self.bias[:, None, None]

    def reads(self, position: int) -> Read:
        """Return where the row of a position lies."""
        count = min(position, self.back) + 1
        return Read(self.back + 1 - count, count, 0)

    def product(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
        """Return W_A x."""
        own = weight[None, :, None]  # one row of the band for all positions
        if rows.documents is not None:
            after = weight.shape[-1] - 1 - self.back
            own = own * band.same_document(rows.positions, self.back, after)
        return band.product(own, x, self.back)

    def offset(self, keys: int, rows: Rows) -> Tensor:  # noqa: ARG002 - the same everywhere
        """Return b."""
        return self.bias[:, None, None]
