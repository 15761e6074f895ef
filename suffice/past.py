"""What a layer reads of the past that its pattern leaves out.

Letters: B batch, H query heads, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import ConfigError
from suffice.records import Axis
from suffice.torch_compat import usable


class Past(Axis, ABC, family="past"):
    """Base of what is read of the past."""

    reads: bool = True
    """True if something is read."""

    segment: int | None = None
    """Positions of a segment, within which the pattern stays; None = it is free."""

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
        """Return the module that reads it, None if there is nothing to read."""


@dataclass(frozen=True)
class NoPast(Past):
    """A layer reads what its pattern shows and nothing else, as nearly all do."""

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

    def build(
        self,
        *,
        num_heads: int,  # noqa: ARG002 - nothing to build
        num_kv_heads: int,  # noqa: ARG002
        device: torch.device | str | None,  # noqa: ARG002
        dtype: torch.dtype | None,  # noqa: ARG002
    ) -> nn.Module | None:
        """Return nothing."""
        return None


@dataclass(frozen=True)
class Infini(Past):
    """out_t = g_h M_t(q_t) + (1 - g_h) local_t with g_h = sigmoid(gate_h), a number for each head.

    local_t is the softmax within the segment of t. M_t(q) = phi(q) M / (phi(q) z) reads the sums
    over all earlier segments, M = sum of phi(k)^T v and z = sum of phi(k), phi(x) = elu(x) + 1,
    of queries and keys before any rotation; 0 where there is no earlier segment. With `delta` a
    segment adds phi(k)^T (v - M(k)) instead: only what the memory does not tell already.

    Streamed with `Rolling(segment)`, a state is one segment and one memory, whatever the length.
    Choose it for endless input where something of what lies far back should still be heard.

    Args:
        segment: positions of a segment, >= 1.
        delta: with the delta rule.

    Raises:
        ConfigError: if segment < 1.

    Cost: h parameters; 4 T h D E FLOPs beside the pairs of the segments; state g D (E + 1 + 2 N)
        numbers beside keys and values.
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
        """Count what all segments but the first ask, and what all but the last add."""
        later = max(-(-queries // self.segment) - 1, 0)
        known = max(later - 1, 0) * self.delta
        rows = self.segment * (later * (num_heads + num_kv_heads) + known * num_kv_heads)
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
    """The gates of one layer, and how its memory is read and added to.

    Args:
        infini: the settings.
        num_heads: query heads.
        device: where the gates live.
        dtype: of the gates.
    """

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
        """Return the local outputs [B, H, T, E] with what the memory tells.

        Args:
            q: [B, H, T, D], before any rotation, real tokens first.
            k: [B, G, T, D], likewise.
            v: [B, G, T, E].
            local: [B, H, T, E].
        """
        length, more = q.shape[2], -q.shape[2] % self.segment
        q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
        cut = [x.unflatten(2, (-1, self.segment)).unbind(2) for x in (q, k, v)]
        sums, told = None, [self.told(q[:, :, : self.segment], None, v)]
        for of_q, of_k, of_v in zip(cut[0][1:], cut[1], cut[2], strict=False):
            sums = self.added(of_k, of_v, sums)
            told.append(self.told(of_q, sums, of_v))
        return self.mixed(torch.cat(told, dim=2)[:, :, :length], local)

    def mixed(self, told: Tensor, local: Tensor) -> Tensor:
        """Return both, each by its share."""
        share = self.gate.to(told.dtype).sigmoid()[:, None, None]
        return (share * told + (1.0 - share) * local).to(local.dtype)

    def told(self, q: Tensor, sums: Tensor | None, v: Tensor) -> Tensor:
        """Return what a memory tells queries [B, H, n, D]: [B, H, n, E] in float32 or better."""
        exact = torch.promote_types(q.dtype, torch.float32)
        if sums is None:
            return q.new_zeros(*q.shape[:3], v.shape[3], dtype=exact)
        return _divided(_phi(q), sums)

    def added(self, k: Tensor, v: Tensor, sums: Tensor | None) -> Tensor:
        """Return the sums [B, G, D, E + 1] with a segment of keys and values."""
        phi = _phi(k)
        v = v.to(phi.dtype)
        if self.delta and sums is not None:
            v = v - _divided(phi, sums)
        with torch.autocast(k.device.type, enabled=False):  # it would round sums to half
            new = torch.matmul(phi.transpose(-1, -2), F.pad(v, (0, 1), value=1.0))
        return new if sums is None else sums + new


def _phi(x: Tensor) -> Tensor:
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1.0


def _divided(phi: Tensor, sums: Tensor) -> Tensor:
    """Return phi M / (phi z) of queries of heads that share the memories of their groups."""
    batch, heads, length, width = phi.shape
    groups, columns = sums.shape[1], sums.shape[3]
    rows = phi.reshape(batch, groups, heads // groups * length, width)
    with torch.autocast(phi.device.type, enabled=False):
        found = torch.matmul(rows, sums).view(batch, heads, length, columns)
    numbers = torch.finfo(found.dtype)
    return found[..., :-1] / found[..., -1:].clamp(min=numbers.tiny / numbers.eps)


class Begun:
    """The sums over earlier segments, and the segment that is not in them yet."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.open: tuple[Tensor, ...] | None = None  # keys and values of the open segment

    @property
    def filled(self) -> int:
        """Positions of the open segment."""
        return 0 if self.open is None else self.open[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        kept = [x for x in (self.sums, *(self.open or ())) if x is not None]
        return sum(x.numel() * x.element_size() for x in kept)

    def read(self, memory: InfiniMemory, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what the memory tells new queries, and add their keys and values.

        Args:
            memory: of the layer.
            q: [B, H, T, D], before any rotation.
            k: [B, G, T, D], likewise.
            v: [B, G, T, E].
        """
        if self.sums is not None:
            (self.sums,) = usable((self.sums,))
        if self.open is not None:
            self.open = usable(self.open)
        told, at = [], 0
        while at < q.shape[2]:
            to = min(at + memory.segment - self.filled, q.shape[2])
            told.append(memory.told(q[:, :, at:to], self.sums, v))
            self._add(memory, k[:, :, at:to], v[:, :, at:to])
            at = to
        return torch.cat(told, dim=2) if told else memory.told(q, self.sums, v)

    def _add(self, memory: InfiniMemory, k: Tensor, v: Tensor) -> None:
        if self.open is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.open, (k, v), strict=True))
        self.open = k, v
        if self.filled == memory.segment:
            self.sums, self.open = memory.added(k, v, self.sums), None

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions are not compressed yet."""
        return 0 <= positions <= self.filled

    def drop(self, positions: int) -> None:
        """Take positions of the open segment back."""
        if self.open is not None and positions:
            left = self.filled - positions
            self.open = tuple(x[:, :, :left] for x in self.open) if left else None

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order."""
        self.sums = None if self.sums is None else self.sums.index_select(0, rows)
        if self.open is not None:
            self.open = tuple(x.index_select(0, rows) for x in self.open)


__all__ = ["Infini", "NoPast", "Past"]
