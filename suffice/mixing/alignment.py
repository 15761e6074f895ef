"""Super Attention's alignment: a learned map along the sequence, applied to the values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.mixing.base import Mixing
from suffice.mixing.rows import Rows
from suffice.mixing.start import SQUARE, check_start, start_square
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

    def product(self, weight: Tensor, x: Tensor, rows: Rows) -> Tensor:
        """Return W_A x; in packed rows each document reads W_A from its first row."""
        keys = x.shape[2]
        self.check(keys)
        if rows.documents is None:
            return torch.matmul(weight[:, :keys, :keys], x)
        at = rows.positions
        together = rows.documents[:, :, None] == rows.documents[:, None, :]
        weight = weight[:, at[:, :, None], at[:, None, :]].transpose(0, 1)
        return torch.matmul(weight * together[:, None], x)

    def offset(self, keys: int, rows: Rows) -> Tensor:
        """Return b of each position."""
        if rows.documents is None:
            return self.bias[:, :keys, None]
        return self.bias[:, rows.positions].transpose(0, 1)[..., None]
