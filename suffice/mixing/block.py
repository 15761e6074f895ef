"""An alignment within blocks: one square map, repeated along the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.mixing import band
from suffice.mixing.base import Mixing
from suffice.mixing.rows import Rows
from suffice.mixing.start import SQUARE, check_start, start_square
from suffice.mixing.value_map import Read, ValueMap


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

    def product(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
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
        back, after = band.reach(x.shape[2], size - 1, 0 if self.causal else size - 1)
        row = positions % size
        column = row[..., None] + torch.arange(-back, after + 1, device=x.device)
        inside = (column >= 0) & (column < size)
        own = weight[:, row[..., None], column.clamp(0, size - 1)].transpose(0, 1)
        own = own * (inside[:, None] & band.same_document(positions, back, after))
        return band.product(own, x, back)

    def offset(self, keys: int, rows: Rows) -> Tensor:
        """Return b of each position."""
        size = self.weight.shape[-1]
        if rows.documents is None:
            at = torch.arange(keys, device=self.bias.device) % size
            return self.bias[:, at, None]
        return self.bias[:, rows.positions % size].transpose(0, 1)[..., None]
