"""Super Attention's alignment: a learned map along the sequence, applied to the values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError, unknown
from suffice.finite import finite
from suffice.mixing.base import Mixing, Rows

INITS = ("glorot", "identity", "orthogonal")


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
        if self.init not in INITS:
            raise unknown("init of Alignment", self.init, INITS)

    @property
    def max_length(self) -> int:  # type: ignore[override]
        """The side of W_A, in tokens."""
        return self.length

    def parameters(self, num_kv_heads: int) -> int:
        """Count W_A and b."""
        maps = num_kv_heads if self.per_head else 1
        return maps * self.length * (self.length + self.bias)

    def flops(self, keys: int, num_kv_heads: int, value_width: int) -> int:  # noqa: ARG002
        """Count 2 S^2 W, shared or per head."""
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


class AlignmentMap(nn.Module):
    """W_A and b of one layer.

    Shapes:
        weight: [maps, length, length]; bias: [maps, length], maps = 1 (shared) or key/value heads.
        k [B, G, S, D], v [B, G, S, E] -> k, v' of the same shapes
    """

    def __init__(
        self,
        alignment: Alignment,
        maps: int,
        *,
        causal: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        length = alignment.length
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(maps, length, length, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(maps, length, device=device, dtype=dtype))
        if not alignment.bias:
            self.register_parameter("bias", None)
        self._start(alignment.init)

    @torch.no_grad()
    def _start(self, init: str) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for weight in self.weight:
            if init == "identity":
                nn.init.eye_(weight)
            elif init == "orthogonal":
                exact = torch.promote_types(weight.dtype, torch.float32)  # QR knows no half
                drawn = torch.empty_like(weight, dtype=exact)
                weight.copy_(nn.init.orthogonal_(drawn))
            else:
                nn.init.xavier_uniform_(weight)
        if self.causal:
            length = self.weight.shape[-1]
            if init == "glorot":
                terms = torch.arange(1, length + 1, device=self.weight.device)
                self.weight.mul_((length / terms).sqrt()[:, None])
            self.weight.tril_()

    def map_of(self, keys: int, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Return W_A [1 or B, maps, S, S] and b [1 or B, maps, S, 1] for S keys of these rows."""
        weight = self.weight.tril() if self.causal else self.weight
        if rows.positions is None:
            bias = None if self.bias is None else self.bias[None, :, :keys, None]
            return weight[None, :, :keys, :keys], bias
        at = rows.positions
        weight = weight[:, at[:, :, None], at[:, None, :]].transpose(0, 1)
        if rows.together is not None:
            weight = weight * rows.together[:, None]
        bias = None if self.bias is None else self.bias[:, at].transpose(0, 1)[..., None]
        return weight, bias

    def seen(self, keys: int, rows: Rows) -> Tensor:
        """Return where position t may read position s: bool [1 or B, 1, S, S]."""
        seen = torch.ones(1, 1, keys, keys, dtype=torch.bool, device=self.weight.device)
        if self.causal:
            seen = seen.tril()
        return seen if rows.together is None else seen & rows.together[:, None]

    def forward(self, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return k and V' = W_A V + b; padded values are read as zero."""
        batch, groups, keys, width = v.shape
        maps, length = self.weight.shape[:2]
        if keys > length:
            raise ShapeError(
                f"{keys} keys are more than the {length} this Alignment was built for; give at "
                f"most {length}, or extend the layer: suffice.extend(layer, {keys})."
            )
        if rows.valid is not None:
            v = v.masked_fill(~rows.valid[:, None, :, None], 0.0)
        weight, bias = self.map_of(keys, rows)
        # one map for all: the heads are features of one wide head, and no copy is made
        heads = v if maps > 1 else v.transpose(1, 2).reshape(batch, 1, keys, groups * width)
        hides = self.causal or rows.together is not None
        if hides and not finite(v):
            mixed = _spared(weight, bias, heads, self.seen(keys, rows))
        else:
            mixed = _product(weight, bias, heads)
        if maps == 1:
            mixed = mixed.view(batch, keys, groups, width).transpose(1, 2)
        return k, mixed

    def extra_repr(self) -> str:
        """Show the form in the printed module."""
        maps, length = self.weight.shape[:2]
        return f"length={length}, maps={maps}, bias={self.bias is not None}, causal={self.causal}"


def _spared(weight: Tensor, bias: Tensor | None, heads: Tensor, seen: Tensor) -> Tensor:
    """Return the product, NaN for exactly the positions that may read something non-finite."""
    bad = ~heads.isfinite().all(dim=-1)  # [B, maps, S]
    poisoned = (seen & bad[:, :, None]).any(dim=-1)[..., None]
    mixed = _product(weight, bias, heads.masked_fill(bad[..., None], 0.0))
    return mixed.masked_fill(poisoned, torch.nan)


def _product(weight: Tensor, bias: Tensor | None, heads: Tensor) -> Tensor:
    """Return weight @ heads + bias [B, maps, S, E]; one map for all is not copied."""
    batch, maps, keys, width = heads.shape
    weight = weight.expand(batch, maps, keys, keys).flatten(0, 1)
    if bias is None:
        mixed = torch.bmm(weight, heads.flatten(0, 1))
    else:
        bias = bias.expand(batch, maps, keys, width).flatten(0, 1)
        mixed = torch.baddbmm(bias, weight, heads.flatten(0, 1))
    return mixed.unflatten(0, (batch, maps))
