"""Linformer's mixing: keys and values are summed along the sequence into a fixed number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, ShapeError
from suffice.mixing.base import Mixing, RowLayout
from suffice.utils.records import derived


@dataclass(frozen=True)
class LowRank(Mixing):
    """K' = E K and V' = F V: the kernel reads `rank` sums of keys and of values instead of all.

    E and F are [rank, length], the same for all heads unless per_head; `keys` [maps, rank,
    length] is E and `values` [maps, rank, length] is F. An input shorter than `length` uses the
    first columns. Columns count from the first real token, and padded keys and values are
    zeroed, so padding may be anywhere. There are no biases.

    A sum of keys stands at no position: a layer has the full pattern, honours no mask of pairs
    and takes one document per row. Choose it for long input of a fixed length, read in both
    directions: the kernel's cost grows with S * rank instead of S^2.

    Args:
        length: the longest sequence of keys, tokens, >= 1.
        rank: keys and values that the kernel reads, 1 to length.
        shared: F is E (the paper's key-value sharing).
        per_head: an E (and F) for each key/value head instead of one for all (the paper's
            headwise sharing).

    Raises:
        ConfigError: if length < 1, or rank is not between 1 and length.

    Cost: rank * length parameters, twice that if not shared (times the key/value heads if
        per_head); 4 rank S W FLOPs, W the features of all key/value heads.
    Example:
        >>> LowRank(length=512, rank=128).parameters(num_kv_heads=4)
        65536

    Source: Wang et al. 2020, arXiv:2006.04768, equation 7 and section 4. No difference; both
    start Glorot-uniform.
    """

    keeps_keys = False

    length: int
    rank: int
    shared: bool = True
    per_head: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.rank <= self.length:
            raise ConfigError(
                f"LowRank(length={self.length!r}, rank={self.rank!r}): give the longest input, "
                ">= 1, and a rank from 1 to that length."
            )

    max_length = derived(lambda self: self.length)

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count E, and F if it is another."""
        maps = num_kv_heads if self.per_head else 1
        return maps * self.rank * self.length * (1 if self.shared else 2)

    def reads(self, keys: int) -> int:  # noqa: ARG002 - the same for any input
        """Return the rank."""
        return self.rank

    def flops(self, keys: int, value_width: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count E K and F V, keys as wide as values."""
        return 4 * self.rank * keys * value_width

    def build(
        self,
        *,
        num_kv_heads: int,
        causal: bool,  # noqa: ARG002 - never is
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module that holds E and F."""
        return LowRankMap(self, num_kv_heads if self.per_head else 1, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Mixing, ...]:
        """Return shared, separate and per-head forms."""
        return (cls(9, 3), cls(9, 9, shared=False), cls(9, 2, shared=False, per_head=True))


class LowRankMap(nn.Module):
    """E [maps, rank, length], and F of that shape if it is another."""

    def __init__(
        self,
        low_rank: LowRank,
        maps: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        shape = (maps, low_rank.rank, low_rank.length)
        self.keys = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if low_rank.shared:
            self.register_parameter("values", None)
        else:
            self.values = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        for parameter in self.parameters():
            for matrix in parameter:
                nn.init.xavier_uniform_(matrix)

    def forward(self, k: Tensor, v: Tensor, rows: RowLayout) -> tuple[Tensor, Tensor]:
        """Return E k and F v; padded keys and values are read as zero."""
        length = self.keys.shape[-1]
        if k.shape[2] > length:
            raise ShapeError(
                f"{k.shape[2]} keys are more than the {length} this LowRank was built for; give at "
                f"most {length}, or resize the layer: suffice.interpolate(layer, {k.shape[2]})."
            )
        values = self.keys if self.values is None else self.values
        order = rows.order()
        k, v = (rows.gather(x.transpose(1, 2), order) for x in (k, v))
        return _sums(self.keys, k), _sums(values, v)

    def extra_repr(self) -> str:
        maps, rank, length = self.keys.shape
        return f"rank={rank}, length={length}, maps={maps}, shared={self.values is None}"


def _sums(weight: Tensor, x: Tensor) -> Tensor:
    """Return weight [maps, R, S] times x [B, S, G, E]: [B, G, R, E]."""
    weight = weight[..., : x.shape[1]]
    if len(weight) > 1:
        return torch.matmul(weight, x.transpose(1, 2))
    # one map for all: the heads are features of one wide head, and no copy is made
    return torch.matmul(weight, x.flatten(2)).unflatten(-1, x.shape[2:]).transpose(1, 2)
