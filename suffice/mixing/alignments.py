"""The alignments of Super Attention: learned maps along the sequence, applied to the values.

Four forms of W_A: a whole square, its diagonals near the main one, one block repeated along the
sequence, and one filter for all positions.

Letters: B batch, S positions, N sides, F features of a map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.mixing.base import Mixing, RowLayout
from suffice.mixing.value_map import LearnedMixing, Shapes, ValueMap, WeightSpan
from suffice.utils.records import derived

MIN_SIDE = 32  # positions; below, a product is too small to run at full speed


class _SquareMap(ValueMap):
    """W [maps, side, side], its lower triangle in a causal layer."""

    @torch.no_grad()
    def start(self, init: str) -> None:
        """Fill W; causal Glorot rows are scaled by sqrt(S / (t + 1)), for they have t + 1 terms."""
        weight = self.weight
        for square in weight:
            if init == "identity":
                nn.init.eye_(square)
            elif init == "orthogonal":
                exact = torch.promote_types(
                    square.dtype, torch.float32
                )  # QR does not support half precision
                square.copy_(nn.init.orthogonal_(torch.empty_like(square, dtype=exact)))
            else:
                nn.init.xavier_uniform_(square)
        if self.causal:
            if init == "glorot":
                side = weight.shape[-1]
                terms = torch.arange(1, side + 1, device=weight.device)
                weight.mul_((side / terms).sqrt()[:, None])
            weight.tril_()

    def mask_weight(self, weight: Tensor) -> Tensor:
        """Return the lower triangle in a causal layer."""
        return weight.tril() if self.causal else weight


class AlignmentMap(_SquareMap):
    """W_A [maps, length, length] and b [maps, length]."""

    local = derived(lambda self: self.causal)

    def locate(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return row q, column k."""
        return (q, k.clamp(min=0)), k <= q

    def span(self, position: int) -> WeightSpan:
        """Return the row of a position up to the diagonal."""
        self.check(position + 1)
        return WeightSpan(position * self.weight.shape[-1], position + 1, position)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x; in packed rows each document reads W_A from its first row."""
        keys = x.shape[2]
        if rows.documents is None:
            return torch.matmul(weight[:, :keys, :keys], x)
        at = rows.positions
        together = rows.documents[:, :, None] == rows.documents[:, None, :]
        weight = weight[:, at[:, :, None], at[:, None, :]].transpose(0, 1)
        return torch.matmul(weight * together[:, None], x)


@dataclass(frozen=True)
class Alignment(LearnedMixing):
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
        bias: whether b exists.
        init: initialisation of W_A: "glorot" (the paper's framework default), "identity" (starts as
            no mixing at all) or "orthogonal".

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

    starts = ("glorot", "identity", "orthogonal")
    module = AlignmentMap
    history = None

    length: int
    per_head: bool = False
    bias: bool = True
    init: str = "glorot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ConfigError(f"Alignment(length={self.length!r}): give the longest input, >= 1.")

    max_length = derived(lambda self: self.length)

    def shapes(self, *, causal: bool) -> Shapes:  # noqa: ARG002
        """Return a square and a number per row."""
        return (self.length, self.length), (self.length,)

    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count 2 S^2 W, the upper triangle of a causal layer too."""
        return 2 * keys * keys * value_width

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return one of each form."""
        return (
            cls(9, init="identity"),
            cls(9, bias=False, init="orthogonal"),
            cls(9, per_head=True),
        )


class BlockMap(_SquareMap):
    """M [maps, size, size] and b [maps, size]."""

    def locate(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return M[q mod size, k mod size], read within a block."""
        size = self.weight.shape[-1]
        return (q % size, k % size), (k // size == q // size) & (k <= q)

    def bias_at(self, positions: Tensor) -> Tensor:
        """Return b of positions within their blocks."""
        return super().bias_at(positions % self.weight.shape[-1])

    def span(self, position: int) -> WeightSpan:
        """Return the row of a position within its block up to the diagonal."""
        size = self.weight.shape[-1]
        row = position % size
        return WeightSpan(row * size, row + 1, row)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
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
        before = min(size - 1, max(x.shape[2] - 1, 0))
        after = 0 if self.causal else before
        row = positions % size
        column = row[..., None] + torch.arange(-before, after + 1, device=x.device)
        inside = (column >= 0) & (column < size)
        diagonals = weight[:, row[..., None], column.clamp(0, size - 1)].transpose(0, 1)
        inside = inside[:, None] & _same_document(positions, before, after)
        return _banded_product(diagonals * inside, x, before)


@dataclass(frozen=True)
class BlockAlignment(LearnedMixing):
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
        bias: whether b exists.
        init: initialisation of M: "identity" (starts as no mixing at all), "glorot" or
            "orthogonal".

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

    starts = Alignment.starts
    module = BlockMap

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

    history = derived(lambda self: self.size - 1)

    def shapes(self, *, causal: bool) -> Shapes:  # noqa: ARG002
        """Return a square and a number per row."""
        return (self.size, self.size), (self.size,)

    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count one product for each block."""
        side = min(self.size, max(keys, 1))
        return 2 * -(-keys // side) * side * side * value_width

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return small, large and per-head forms."""
        return (
            cls(2),
            cls(6, bias=False, init="orthogonal"),
            cls(3, per_head=True, init="glorot"),
        )


class _DiagonalMap(ValueMap):
    """W [maps, ..., offsets] by its diagonals, in the order of the positions they read."""

    @property
    def back(self) -> int:
        """Distance that the first diagonal reads back; also the index of the main diagonal."""
        offsets = self.weight.shape[-1]
        return offsets - 1 if self.causal else offsets // 2

    @torch.no_grad()
    def start(self, init: str) -> None:
        """Fill W; Glorot draws each of n diagonals from U(-sqrt(3 / n), sqrt(3 / n))."""
        if init == "identity":
            self.weight.zero_()
            self.weight[..., self.back] = 1.0
        else:
            bound = (3.0 / self.weight.shape[-1]) ** 0.5
            nn.init.uniform_(self.weight, -bound, bound)

    def _column(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the diagonal of W[q, k], and whether a causal layer reads it."""
        column = k - q + self.back
        return column.clamp(0, self.back), (column >= 0) & (k <= q) & (k >= 0)

    def _multiply(self, diagonals: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return the product of a band [B or 1, maps, S or 1, offsets] and x within documents."""
        if rows.documents is not None:
            after = diagonals.shape[-1] - 1 - self.back
            diagonals = diagonals * _same_document(rows.positions, self.back, after)
        return _banded_product(diagonals, x, self.back)


class BandedMap(_DiagonalMap):
    """The diagonals of W_A [maps, length, offsets] and b [maps, length]."""

    def locate(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return row q, the column of the distance."""
        column, inside = self._column(q, k)
        return (q, column), inside

    def span(self, position: int) -> WeightSpan:
        """Return the end of the row of a position."""
        self.check(position + 1)
        count = min(position, self.back) + 1
        return WeightSpan((position + 1) * (self.back + 1) - count, count, position)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        """Return W_A x; a document of a packed row starts at row 0."""
        if rows.documents is None:
            return self._multiply(weight[None, :, : x.shape[2]], x, rows)
        return self._multiply(weight[:, rows.positions].transpose(0, 1), x, rows)


class ToeplitzMap(_DiagonalMap):
    """The filter [maps, offsets] and b [maps]."""

    def locate(self, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return c[q - k]."""
        column, inside = self._column(q, k)
        return (column,), inside

    def bias_at(self, positions: Tensor) -> Tensor:  # noqa: ARG002 - the same everywhere
        return self.bias[:, None, None]

    def span(self, position: int) -> WeightSpan:
        """Return the end of the filter."""
        count = min(position, self.back) + 1
        return WeightSpan(self.back + 1 - count, count, 0)

    def product(self, weight: Tensor, x: Tensor, rows: RowLayout) -> Tensor:
        return self._multiply(weight[None, :, None], x, rows)


class _DiagonalMixing(LearnedMixing):
    """Base of the forms that are zero beyond `width` diagonals on a side."""

    starts = ("glorot", "identity")

    width: int

    history = derived(lambda self: self.width - 1)

    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:
        """Count the products of the sides that the sequence is cut into."""
        count, side, before, after = cut(keys, self.width - 1, 0 if causal else self.width - 1)
        columns = side if count == 1 else side + before + after
        return 2 * count * side * columns * value_width

    def _offsets(self, *, causal: bool) -> int:
        return self.width if causal else 2 * self.width - 1


@dataclass(frozen=True)
class BandedAlignment(_DiagonalMixing):
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
        width: positions back, its own included (if not causal, ahead as well), >= 1.
        per_head: one W_A for each key/value head instead of one for all.
        bias: whether b exists.
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

    module = BandedMap

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

    max_length = derived(lambda self: self.length)

    def shapes(self, *, causal: bool) -> Shapes:
        """Return the diagonals of each row and a number per row."""
        return (self.length, self._offsets(causal=causal)), (self.length,)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return narrow, wide and per-head forms."""
        return (
            cls(9, 2),
            cls(9, 9, bias=False, init="glorot"),
            cls(9, 3, per_head=True, init="glorot"),
        )


@dataclass(frozen=True)
class ToeplitzAlignment(_DiagonalMixing):
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
        width: positions back, its own included (if not causal, ahead as well), >= 1.
        per_head: one filter for each key/value head instead of one for all.
        bias: whether b exists.
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

    module = ToeplitzMap

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

    def shapes(self, *, causal: bool) -> Shapes:
        """Return a filter and one number."""
        return (self._offsets(causal=causal),), ()

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return narrow, wide and per-head forms."""
        return (cls(2), cls(7, bias=False, init="glorot"), cls(3, per_head=True, init="glorot"))


# Banded products: the sequence is cut into sides of equal length; each is multiplied by a dense
# square that holds the band, so the cost grows with the length times the side.


def cut(keys: int, before: int, after: int) -> tuple[int, int, int, int]:
    """Return how S positions are cut: number of sides, their length, `before` and `after` within S.

    A side is at least as long as `before` and `after`, so that its positions read no further than
    its two neighbours. It is one dense side where that is less work.
    """
    before, after = (min(offset, max(keys - 1, 0)) for offset in (before, after))
    count = max(-(-keys // max(MIN_SIDE, before, after)), 1)
    side = max(-(-keys // count), before, after)
    if keys * keys <= count * side * (side + before + after):
        count, side = 1, keys
    return count, side, before, after


def _banded_product(band: Tensor, x: Tensor, before: int) -> Tensor:
    """Return the product of a band and x [B, maps, S, F], which is zero beyond both ends.

    `band` is [B or 1, maps, S or 1, offsets]; its column 0 reads `before` positions back.
    """
    keys = x.shape[2]
    count, side, back, ahead = cut(keys, before, band.shape[-1] - 1 - before)
    band = band[..., before - back : before + ahead + 1]
    padding = count * side - keys
    if band.shape[-2] == 1 != count * side:
        rows = band[..., None, :].expand(*band.shape[:-1], side, band.shape[-1])
    else:
        rows = F.pad(band, (0, 0, 0, padding)).unflatten(-2, (count, side))
    maps = _skew(rows, side)
    values = F.pad(x, (0, 0, 0, padding)).unflatten(2, (count, side))
    if count == 1:
        maps = maps[..., back : back + side]
    else:
        values = _with_neighbours(values, back, ahead)
    return torch.matmul(maps, values).flatten(2, 3)[:, :, :keys]


def _skew(band: Tensor, side: int) -> Tensor:
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


def _same_document(positions: Tensor, before: int, after: int) -> Tensor:
    """Return where a band stays inside its document: bool [B, 1, S, offsets].

    positions: int [B, S], of each token within its document, one up at each step.
    """
    outside = -(before + positions.shape[1] + 1)
    read = F.pad(positions, (before, after), value=outside).unfold(1, before + after + 1, 1)
    steps = torch.arange(-before, after + 1, device=positions.device)
    return (read == positions[..., None] + steps)[:, None]
