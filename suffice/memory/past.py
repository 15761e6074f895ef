"""Reads of the text before the window: none, or Infini-attention's compressive memory.

Letters: B batch, H query heads, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.utils.records import Axis
from suffice.utils.torch_compat import usable


class Past(Axis, ABC, family="past"):
    """Base of the ways to read keys and values that the pattern leaves out."""

    reads: bool = True
    """True if it reads anything."""

    segment: int | None = None
    """Positions of a segment that the pattern must stay within; None allows any pattern."""

    @abstractmethod
    def parameters(self, num_heads: int) -> int:
        """Count the learned numbers."""

    @abstractmethod
    def flops(self, queries: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
        """Count the FLOPs (2 per multiply-add) of the products on a sequence of T positions."""

    @abstractmethod
    def state_fixed(self, num_kv_heads: int, head_dim: int) -> int:
        """Count the numbers a streaming state keeps whatever the length."""

    @abstractmethod
    def build(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module | None:
        """Return the module, None if nothing is read."""


@dataclass(frozen=True)
class NoPast(Past):
    """A layer reads only what its pattern allows, as nearly all do."""

    reads = False

    def parameters(self, num_heads: int) -> int:  # noqa: ARG002 - nothing is learned
        """Count none."""
        return 0

    def flops(self, queries: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def state_fixed(self, num_kv_heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def build(self, **_: Any) -> None:
        """Return None."""


@dataclass(frozen=True)
class Infini(Past):
    """out_t = g_h M_t(q_t) + (1 - g_h) local_t with g_h = sigmoid(gate_h), a number for each head.

    local_t is the softmax within the segment of t. M_t(q) = phi(q) M / (phi(q) z) reads the sums
    over all earlier segments, M = sum of phi(k)^T v and z = sum of phi(k), phi(x) = elu(x) + 1,
    of queries and keys before any rotation; 0 where there is no earlier segment. With `delta` a
    segment adds phi(k)^T (v - M(k)) instead: only what the memory does not hold already.

    Streamed with `Rolling(segment)`, a state is one segment and one memory, whatever the length.
    Choose it for endless input where something of what lies far back should still be read.

    Args:
        segment: positions of a segment, >= 1.
        delta: whether to use the delta rule.

    Raises:
        ConfigError: if segment < 1.

    Cost: h parameters; the pairs of the segments plus 4 T h D E FLOPs; keys and values plus a state
        of g D (E + 1 + 2 N) numbers.
    Source: Munkhdalai et al. 2024, arXiv:2404.07143, equations 2 to 10. No difference.
    """

    segment: int  # type: ignore[assignment]
    delta: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment < 1:
            raise ConfigError(f"Infini(segment={self.segment}): give at least 1 position.")

    def parameters(self, num_heads: int) -> int:
        """Count the gates."""
        return num_heads

    def flops(self, queries: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
        """Count the reads of all segments but the first, and the updates of all but the last."""
        updates = max(-(-queries // self.segment) - 1, 0)
        delta_reads = max(updates - 1, 0) * self.delta
        rows = self.segment * (updates * (num_heads + num_kv_heads) + delta_reads * num_kv_heads)
        return 2 * rows * head_dim * (head_dim + 1)

    def state_fixed(self, num_kv_heads: int, head_dim: int) -> int:
        """Count one memory, and keys before rotation and values of the segment not in it yet."""
        return num_kv_heads * head_dim * (head_dim + 1 + 2 * self.segment)

    def build(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,  # noqa: ARG002 - a gate for each query head
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return the module with its gates."""
        return InfiniMemory(self, num_heads, device=device, dtype=dtype)

    @classmethod
    def samples(cls) -> tuple[Past, ...]:
        """Return both rules, with segments that short tests pass."""
        return cls(2), cls(4, delta=True)


class InfiniMemory(nn.Module):
    """The gates of one layer, and its memory: sums [B, G, D, E + 1], M and z in the last column."""

    def __init__(
        self,
        infini: Infini,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.segment, self.delta = infini.segment, infini.delta
        self.gate = nn.Parameter(torch.zeros(num_heads, device=device, dtype=dtype))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, local: Tensor) -> Tensor:
        """Return the outputs [B, H, T, E] of a text, local being those within each segment.

        q [B, H, T, D] and k [B, G, T, D] are not rotated, v is [B, G, T, E]; real tokens first.
        """
        length, padding = q.shape[2], -q.shape[2] % self.segment
        segments = [
            F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, self.segment)).unbind(2)
            for x in (q, k, v)
        ]
        sums, reads = None, []
        for q_segment, k_segment, v_segment in zip(*segments, strict=True):
            reads.append(self.read(q_segment, sums, v_segment))
            if len(reads) < len(segments[0]):
                sums = self.update(k_segment, v_segment, sums)
        remote = torch.cat(reads, dim=2) if reads else self.read(q, None, v)
        return self.gated(remote[:, :, :length], local)

    def gated(self, remote: Tensor, local: Tensor) -> Tensor:
        """Return g * remote + (1 - g) * local."""
        share = self.gate.to(remote.dtype).sigmoid()[:, None, None]
        return (share * remote + (1.0 - share) * local).to(local.dtype)

    def read(self, q: Tensor, sums: Tensor | None, v: Tensor) -> Tensor:
        """Return M(q) of queries [B, H, n, D]: [B, H, n, E] in float32 or better."""
        exact = torch.promote_types(q.dtype, torch.float32)
        if sums is None:
            return q.new_zeros(*q.shape[:3], v.shape[3], dtype=exact)
        return _normalised_read(_phi(q), sums)

    def update(self, k: Tensor, v: Tensor, sums: Tensor | None) -> Tensor:
        """Return the sums with a segment of keys and values added."""
        phi = _phi(k)
        v = v.to(phi.dtype)
        if self.delta and sums is not None:
            v = v - _normalised_read(phi, sums)
        with torch.autocast(k.device.type, enabled=False):  # it would round sums to half
            new = torch.matmul(phi.transpose(-1, -2), F.pad(v, (0, 1), value=1.0))
        return new if sums is None else sums + new


def _phi(x: Tensor) -> Tensor:
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1.0


def _normalised_read(phi: Tensor, sums: Tensor) -> Tensor:
    """Return phi M / (phi z), where the query heads of a group share one memory."""
    batch, heads, length, width = phi.shape
    groups, columns = sums.shape[1], sums.shape[3]
    rows = phi.reshape(batch, groups, heads // groups * length, width)
    with torch.autocast(phi.device.type, enabled=False):
        products = torch.matmul(rows, sums).view(batch, heads, length, columns)
    numbers = torch.finfo(products.dtype)
    return products[..., :-1] / products[..., -1:].clamp(min=numbers.tiny / numbers.eps)


class InfiniState:
    """The sums over earlier segments, and the keys and values of the open segment after them."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.open: tuple[Tensor, ...] | None = None

    @property
    def filled(self) -> int:
        """Positions of the open segment."""
        return 0 if self.open is None else self.open[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [x for x in (self.sums, *(self.open or ())) if x is not None]
        return sum(x.numel() * x.element_size() for x in tensors)

    def read(self, memory: InfiniMemory, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the reads of new queries [B, H, T, D]; add their keys and values to the memory."""
        if self.sums is not None:
            (self.sums,) = usable((self.sums,))
        if self.open is not None:
            self.open = usable(self.open)
        reads, start = [], 0
        while start < q.shape[2]:
            end = min(start + memory.segment - self.filled, q.shape[2])
            reads.append(memory.read(q[:, :, start:end], self.sums, v))
            self._append(memory, k[:, :, start:end], v[:, :, start:end])
            start = end
        return torch.cat(reads, dim=2) if reads else memory.read(q, self.sums, v)

    def _append(self, memory: InfiniMemory, k: Tensor, v: Tensor) -> None:
        if self.open is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.open, (k, v), strict=True))
        self.open = k, v
        if self.filled == memory.segment:
            self.sums, self.open = memory.update(k, v, self.sums), None

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions are all in the open segment."""
        return 0 <= positions <= self.filled

    def drop(self, positions: int) -> None:
        """Drop the last positions of the open segment."""
        if self.open is not None and positions:
            remaining = self.filled - positions
            self.open = tuple(x[:, :, :remaining] for x in self.open) if remaining else None

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order."""
        self.sums = None if self.sums is None else self.sums.index_select(0, rows)
        if self.open is not None:
            self.open = tuple(x.index_select(0, rows) for x in self.open)


__all__ = ["Infini", "NoPast", "Past"]
