"""Super Attention's alignment: a learned map along the sequence, applied to the values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.mixing import value_map
from suffice.mixing.base import (
    BAND,
    SQUARE,
    Mixing,
    RowLayout,
    check_start,
    start_band,
    start_square,
)
from suffice.mixing.value_map import Read, ValueMap


@dataclass(frozen=True)
class Alignment(Mixing):
    """V' = W_A V + b before the kernel: position t gets sum_s W_A[t, s] v_s + b_t.

    b_t is one number per position, added to all its features. In a causal layer W_A is lower
    triangular by construction: what stands above the diagonal is never used. A sequence shorter
    than `length` uses the top-left block of W_A. Rows count from the first real token, so padding
    may be anywhere and packed documents each use W_A from its first row; padded values are
    zeroed before W_A reads them.

    Use it where the length is fixed (images, short texts); it does not stretch to longer input.

    Args:
        length: the longest sequence of keys, tokens, >= 1.
        per_head: one W_A for each key/value head instead of one for all.
        bias: with the b of above.
        init: "glorot" (the paper's framework default), "identity" (starts as no mixing at all) or
            "orthogonal".

    Raises:
        ConfigError: if length < 1 or init is unknown.

    Cost: length^2 + length parameters (times the key/value heads if per_head); 2 S^2 W FLOPs.
    Example:
        >>> Alignment(length=64).parameters(num_kv_heads=4)
        4160

    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: the bias, which the
    paper's parameter counts contain, is spelt out; causal rows are scaled up at a Glorot start,
    because row t has only t + 1 terms.
    """

    length: int
    per_head: bool = False
    bias: bool = True
    init: str = "glorot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ConfigError(f"Alignment(length={self.length!r}): give the longest input, >= 1.")
        check_start("Alignment", self.init, SQUARE)

    history = None

    @property
    def max_length(self) -> int:  # type: ignore[override]
        """The side of W_A, in tokens."""
        return self.length

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count W_A and b."""
        maps = num_kv_heads if self.per_head else 1
        return maps * self.length * (self.length + self.bias)

    def flops(
        self,
        keys: int,
        num_kv_heads: int,  # noqa: ARG002 - shared or per head costs the same
        value_width: int,
        *,
        causal: bool = False,  # noqa: ARG002 - the upper triangle is multiplied too
    ) -> int:
        """Count 2 S^2 W."""
        return 2 * keys * keys * value_width

    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module that holds W_A and b."""
        maps = num_kv_heads if self.per_head else 1
        return AlignmentMap(self, maps, causal=causal, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return one of each form."""
        return (
            cls(9, init="identity"),
            cls(9, bias=False, init="orthogonal"),
            cls(9, per_head=True),
        )


class AlignmentMap(ValueMap):
    """W_A [maps, length, length] and b [maps, length]."""

    def __init__(
        self,
        alignment: Alignment,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        length = alignment.length
        super().__init__(
            (maps, length, length),
            (maps, length) if alignment.bias else None,
            causal=causal,
            device=device,
            dtype=dtype,
        )
        self.local = causal
        start_square(self.weight, alignment.init, causal=causal)

    def used(self, weight: Tensor) -> Tensor:
        """Return the lower triangle in a causal layer."""
        return weight.tril() if self.causal else weight

    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """Return W_A[q, k]."""
        return self.weight[:, q, k.clamp(min=0)].transpose(0, 1) * (k <= q)[:, None]

    def offsets(self, q: Tensor) -> Tensor:
        """Return b of positions."""
        return self.bias[:, q].transpose(0, 1)[..., None]

    def check(self, keys: int) -> None:
        """Refuse more positions than W_A has rows."""
        length = self.weight.shape[-1]
        if keys > length:
            raise ShapeError(
                f"{keys} keys are more than the {length} this Alignment was built for; give at "
                f"most {length}, or extend the layer: suffice.extend(layer, {keys})."
            )

    def reads(self, position: int) -> Read:
        """Return where the row of a position lies."""
        self.check(position + 1)
        length = self.weight.shape[-1]
        return Read(position * length, position + 1, position)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x; in packed rows each document reads W_A from its first row."""
        keys = x.shape[2]
        self.check(keys)
        if rows.documents is None:
            return torch.matmul(weight[:, :keys, :keys], x)
        at = rows.positions
        together = rows.documents[:, :, None] == rows.documents[:, None, :]
        weight = weight[:, at[:, :, None], at[:, None, :]].transpose(0, 1)
        return torch.matmul(weight * together[:, None], x)

    def offset(self, keys: int, rows: RowLayout) -> Tensor:
        """Return b of each position."""
        if rows.documents is None:
            return self.bias[:, :keys, None]
        return self.bias[:, rows.positions].transpose(0, 1)[..., None]


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
        return maps * self.length * (value_map.offsets(self.width, causal=causal) + self.bias)

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
        return value_map.flops(keys, back, 0 if causal else back, value_width)

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
        offsets = value_map.offsets(alignment.width, causal=causal)
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

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x; a document of a packed row starts at row 0."""
        keys = x.shape[2]
        self.check(keys)
        if rows.documents is None:
            return value_map.product(weight[None, :, :keys], x, self.back)
        own = weight[:, rows.positions].transpose(0, 1)  # [B, maps, S, offsets]
        inside = value_map.same_document(rows.positions, self.back, own.shape[-1] - 1 - self.back)
        return value_map.product(own * inside, x, self.back)

    def offset(self, keys: int, rows: RowLayout) -> Tensor:
        """Return b of each position."""
        if rows.documents is None:
            return self.bias[:, :keys, None]
        return self.bias[:, rows.positions].transpose(0, 1)[..., None]


@dataclass(frozen=True)
class BlockAlignment(Mixing):
    """V' = W_A V + b with W_A block-diagonal: the same size x size map M for every block.

    W_A[t, s] = M[t mod size, s mod size] if t // size = s // size, else 0, and b_t = b[t mod
    size]. `weight` [maps, size, size] is M (its lower triangle in a causal layer), `bias` [maps,
    size] is b. An input of at most `size` positions gets exactly what an Alignment of that length
    gives it; the last block of a longer one uses the top-left part of M. Positions count from
    the first real token of each document, so padding may be anywhere.

    It reads any length. Choose it to take a trained Alignment to longer input, or where the
    input comes in pieces of one size; a value next to a border is mixed with one side only.

    Args:
        size: positions of a block, >= 1.
        per_head: one M for each key/value head instead of one for all.
        bias: with the b of above.
        init: of M: "identity" (starts as no mixing at all), "glorot" or "orthogonal".

    Raises:
        ConfigError: if size < 1 or init is unknown.

    Cost: size^2 + size parameters (times the key/value heads if per_head); 2 S size W FLOPs, S
        rounded up to whole blocks.
    Example:
        >>> BlockAlignment(size=8).parameters(num_kv_heads=4)
        72

    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: repeated along the
    sequence, which removes its fixed length.
    """

    size: int
    per_head: bool = False
    bias: bool = True
    init: str = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ConfigError(
                f"BlockAlignment(size={self.size!r}): give the positions of a block, >= 1."
            )
        check_start("BlockAlignment", self.init, SQUARE)

    @property
    def history(self) -> int:  # type: ignore[override]
        """At most the rest of a block."""
        return self.size - 1

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count M and b."""
        maps = num_kv_heads if self.per_head else 1
        return maps * self.size * (self.size + self.bias)

    def flops(
        self,
        keys: int,
        num_kv_heads: int,  # noqa: ARG002 - shared or per head costs the same
        value_width: int,
        *,
        causal: bool = False,  # noqa: ARG002 - the upper triangle is multiplied too
    ) -> int:
        """Count one product for each block."""
        side = min(self.size, max(keys, 1))
        return 2 * -(-keys // side) * side * side * value_width

    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module that holds M and b."""
        maps = num_kv_heads if self.per_head else 1
        return BlockMap(self, maps, causal=causal, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return small, large and per-head forms."""
        return (
            cls(2),
            cls(6, bias=False, init="orthogonal"),
            cls(3, per_head=True, init="glorot"),
        )


class BlockMap(ValueMap):
    """M [maps, size, size] and b [maps, size]."""

    def __init__(
        self,
        alignment: BlockAlignment,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        size = alignment.size
        super().__init__(
            (maps, size, size),
            (maps, size) if alignment.bias else None,
            causal=causal,
            device=device,
            dtype=dtype,
        )
        start_square(self.weight, alignment.init, causal=causal)

    def used(self, weight: Tensor) -> Tensor:
        """Return the lower triangle in a causal layer."""
        return weight.tril() if self.causal else weight

    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """Return M[q mod size, k mod size] within a block."""
        size = self.weight.shape[-1]
        inside = (k // size == q // size) & (k <= q)
        return self.weight[:, q % size, k % size].transpose(0, 1) * inside[:, None]

    def offsets(self, q: Tensor) -> Tensor:
        """Return b of positions."""
        return self.bias[:, q % self.weight.shape[-1]].transpose(0, 1)[..., None]

    def reads(self, position: int) -> Read:
        """Return where the row of a position lies."""
        size = self.weight.shape[-1]
        row = position % size
        return Read(row * size, row + 1, row)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x."""
        if rows.documents is not None:
            return self._packed(weight, x, rows.positions)
        keys = x.shape[2]
        side = min(self.weight.shape[-1], max(keys, 1))
        blocks = F.pad(x, (0, 0, 0, -keys % side)).unflatten(2, (-1, side))
        mixed = torch.matmul(weight[:, None, :side, :side], blocks)
        return mixed.flatten(2, 3)[:, :, :keys]

    def _packed(self, weight: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        """Return W_A x of packed rows: blocks start anywhere, so W_A is a band of `size`."""
        size = self.weight.shape[-1]
        back, after = value_map.reach(x.shape[2], size - 1, 0 if self.causal else size - 1)
        row = positions % size
        column = row[..., None] + torch.arange(-back, after + 1, device=x.device)
        inside = (column >= 0) & (column < size)
        own = weight[:, row[..., None], column.clamp(0, size - 1)].transpose(0, 1)
        own = own * (inside[:, None] & value_map.same_document(positions, back, after))
        return value_map.product(own, x, back)

    def offset(self, keys: int, rows: RowLayout) -> Tensor:
        """Return b of each position."""
        size = self.weight.shape[-1]
        if rows.documents is None:
            at = torch.arange(keys, device=self.bias.device) % size
            return self.bias[:, at, None]
        return self.bias[:, rows.positions % size].transpose(0, 1)[..., None]


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
        return maps * (value_map.offsets(self.width, causal=causal) + self.bias)

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
        return value_map.flops(keys, back, 0 if causal else back, value_width)

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
            (maps, value_map.offsets(alignment.width, causal=causal)),
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

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x."""
        own = weight[None, :, None]  # one row of the band for all positions
        if rows.documents is not None:
            after = weight.shape[-1] - 1 - self.back
            own = own * value_map.same_document(rows.positions, self.back, after)
        return value_map.product(own, x, self.back)

    def offset(self, keys: int, rows: RowLayout) -> Tensor:  # noqa: ARG002 - the same everywhere
        """Return b."""
        return self.bias[:, None, None]
