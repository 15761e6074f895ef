"""A memory in a few bits for each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory.base import Claim, Held, Memory, Store
from suffice.memory.dynamic import Dynamic, GrowingStore

BITS = (4, 8)
RANGE_BYTES = 4  # of a least number, and of a step: float32


@dataclass(frozen=True)
class Quantised(Memory):
    """What another memory keeps, in 8 or 4 bits; the latest positions as they are.

    Blocks of positions that are old enough are coded once: the first tensor of a layer (keys, or
    what is key and value in one) with a range for each channel of a block, the others with a range
    for each position and group of channels. A range is its least number and its step, float32; a
    code is packed into its bits. Native kernels read codes for a few positions at a time; else they
    are decoded first, which saves memory, not time.

    Args:
        inner: what is kept.
        bits: of a code, 8 or 4.
        block: positions coded together, even.
        recent: latest positions that are never coded.
        group: channels of a position with one range.

    Raises:
        ConfigError: for other bits, sizes below 1, an odd block, or a memory that is coded already.

    Cost: bits / 8 bytes a number, 8 / block for keys and 8 / group for values in ranges.
    Source: Liu et al. 2024, arXiv:2402.02750, section 3 (per-channel keys, per-token values, a
        window in full precision). Differs: 8 and 4 bits, ranges in float32.
    """

    rounds = True

    inner: Memory = Dynamic()
    bits: int = 8
    block: int = 64
    recent: int = 64
    group: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Memory) or self.inner.rounds:
            raise ConfigError(
                f"Quantised(inner={self.inner!r}): give a memory that keeps numbers as they are, "
                "such as Dynamic() or Rolling(256)."
            )
        if self.bits not in BITS:
            raise ConfigError(f"Quantised(bits={self.bits}): give 8 or 4.")
        if self.block < 2 or self.block % 2 or self.recent < 0 or self.group < 1:  # noqa: PLR2004
            raise ConfigError(
                f"{self!r}: give an even block of at least 2, recent of at least 0 and a group of "
                "at least 1."
            )

    @property
    def window(self) -> int | None:  # type: ignore[override]
        """That of the inner memory."""
        return self.inner.window

    @property
    def sinks(self) -> int:  # type: ignore[override]
        """Those of the inner memory."""
        return self.inner.sinks

    @property
    def spare(self) -> int:  # type: ignore[override]
        """That of the inner memory."""
        return self.inner.spare

    @property
    def capacity(self) -> int | None:  # type: ignore[override]
        """That of the inner memory."""
        return self.inner.capacity

    @property
    def grain(self) -> int:  # type: ignore[override]
        """A block that is not coded yet, one that is half out of the window, and the latest."""
        return 2 * self.block + self.recent

    def widened(self, window: int) -> Quantised:
        """Return it with the inner memory widened."""
        return replace(self, inner=self.inner.widened(window))

    def nbytes_of(self, widths: Sequence[tuple[int, int]], tokens: int, itemsize: int) -> int:
        """Return the bytes of codes, of their ranges and of the tail that is not coded."""
        coded = max(tokens - self.recent, 0) // self.block * self.block
        blocks = self.inner.entries(coded, self.block)
        total = 0
        for i, (heads, width) in enumerate(widths):
            group = min(self.group, width)
            groups = ceil(width / group)
            numbers = self.block * (width if i == 0 else groups * group)
            ranges = width if i == 0 else self.block * groups
            a_block = numbers * self.bits // 8 + 2 * RANGE_BYTES * ranges
            total += heads * (blocks * a_block + (tokens - coded) * width * itemsize)
        return total

    def build(self, unit: int = 1) -> Store:  # noqa: ARG002 - it is never inside another
        """Return an empty store."""
        return QuantisedStore(self)

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return small blocks, so that short tests meet them."""
        return (cls(block=2, recent=1, group=3), cls(bits=4, block=2, recent=0))


class QuantisedStore(Store):
    """Coded blocks in a store of the inner memory, then the latest positions as they came.

    Args:
        memory: the settings.
    """

    def __init__(self, memory: Quantised) -> None:
        super().__init__()
        self.memory = memory
        self.blocks = memory.inner.build(memory.block)
        self.tail = GrowingStore(memory.block)

    def append(self, *parts: Tensor) -> Held:
        """Keep positions; return what was kept decoded, and these as they are."""
        self.check_room(parts[0].shape[2])
        self.tail.append(*parts)
        held = self._held()
        self.length += parts[0].shape[2]
        self._code()
        return held

    def claim(self) -> Claim:
        """Keep one more position, which the caller writes."""
        self.check_room(1)
        self._code()  # a claimed position is coded by the next call: it is written by then
        self.tail.claim()
        return self._laid(1)

    def lay(self, *parts: Tensor) -> Claim:
        """Keep positions as `append` does, and say where all lies: nothing is decoded."""
        self.check_room(parts[0].shape[2])
        self._code()
        self.tail.append(*parts)
        return self._laid(parts[0].shape[2])

    def _laid(self, positions: int) -> Claim:
        self.length += positions
        coded = self.blocks.stretch() if self.blocks.length else None
        first = self.length - self.tail.length
        return Claim(self.tail.stretch()._replace(first=first), coded)

    def held(self) -> Held:
        """Return all that is kept, decoded."""
        return self._held()

    def check_room(self, positions: int) -> None:
        """Refuse positions beyond the inner memory's capacity."""
        capacity = self.memory.capacity
        if capacity is not None and self.length + positions > capacity:
            raise ConfigError(
                f"{positions} more positions do not fit beside {self.length} in "
                f"{self.memory.inner!r}; give a longer one, or reset the state."
            )

    def _held(self) -> Held:
        tail = self._tail()
        if not self.blocks.length:
            return Held(tail, 0)
        block = self.memory.block
        units = self.blocks.append(*self._coded(tuple(part[:, :, :0] for part in tail)))
        decoded = (
            self._decoded(*units.parts[2 * i : 2 * i + 2], part, i > 0)
            for i, part in enumerate(tail)
        )
        whole = tuple(torch.cat(pair, dim=2) for pair in zip(decoded, tail, strict=True))
        return Held(whole, units.first * block, units.sinks * block)

    def _tail(self) -> tuple[Tensor, ...]:
        return self.tail.latest(self.tail.length)

    def _code(self) -> None:
        """Move what is old enough from the tail into the blocks."""
        block, held = self.memory.block, self.tail.length
        old = max(held - self.memory.recent, 0) // block * block
        if old:
            tail, self.tail = self._tail(), GrowingStore(block)
            self.blocks.append(*self._coded(tuple(part[:, :, :old] for part in tail)))
            self.tail.append(*(part[:, :, old:] for part in tail))

    def _coded(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        """Return codes and ranges [B, G, blocks, *] of each part [B, G, n, W], n whole blocks."""
        coded = []
        for i, part in enumerate(parts):
            blocks = part.shape[2] // self.memory.block
            x = part.float().unflatten(2, (blocks, self.memory.block))
            grouped = self._grouped(x, i > 0)
            axis = -1 if i > 0 else -2
            low, high = grouped.amin(dim=axis, keepdim=True), grouped.amax(dim=axis, keepdim=True)
            step = (high - low) / (2**self.memory.bits - 1)
            codes = ((grouped - low) / step.masked_fill(step == 0.0, 1.0)).round_()
            codes = self._packed(codes.to(torch.uint8).flatten(3))
            coded += [codes, torch.stack([low, step], dim=3).flatten(3)]
        return coded

    def _grouped(self, x: Tensor, by_position: bool) -> Tensor:
        """Return blocks [B, G, blocks, n, W] so that the numbers of one range lie on one axis."""
        if not by_position:
            return x
        more = -x.shape[4] % self._group(x.shape[4])
        if more:  # the last group is filled up with a number of its own
            x = torch.cat([x, x[..., -1:].expand(*x.shape[:4], more)], dim=4)
        return x.unflatten(4, (-1, self._group(x.shape[4])))

    def _group(self, width: int) -> int:
        return min(self.memory.group, width)

    def _packed(self, codes: Tensor) -> Tensor:
        if self.memory.bits == 8:  # noqa: PLR2004
            return codes
        return codes[..., ::2] | (codes[..., 1::2] << 4)

    def _unpacked(self, codes: Tensor) -> Tensor:
        if self.memory.bits == 8:  # noqa: PLR2004
            return codes
        return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)

    def _decoded(self, codes: Tensor, ranges: Tensor, like: Tensor, by_position: bool) -> Tensor:
        """Return the numbers of some blocks, [B, G, n, W] in the dtype of what is not coded."""
        width, block = like.shape[3], self.memory.block
        codes = self._unpacked(codes).float()
        low, step = ranges.unflatten(3, (2, -1)).unbind(3)
        if by_position:
            group = self._group(width)
            groups = -(-width // group)
            numbers = codes.unflatten(3, (block, groups, group))
            shape = (block, groups, 1)
        else:
            numbers, shape = codes.unflatten(3, (block, width)), (1, width)
        numbers = numbers * step.unflatten(3, shape) + low.unflatten(3, shape)
        numbers = numbers.flatten(4)[..., :width] if by_position else numbers
        return numbers.flatten(2, 3).to(like.dtype)

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions, decoded."""
        parts = self._held().parts
        return tuple(part[:, :, part.shape[2] - positions :] for part in parts)

    def can_drop(self, positions: int) -> bool:
        """Return whether the last positions are not coded yet."""
        return 0 <= positions <= self.tail.length

    def _why_not(self) -> str:
        return f", of which the last {self.tail.length} are not coded"

    def _drop(self, positions: int) -> None:
        self.tail.drop_last(positions)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.blocks.select(rows)
        self.tail.select(rows)

    def reset(self) -> None:
        """Forget everything."""
        self.blocks.reset()
        self.tail.reset()
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of codes, ranges and the tail, spare room included."""
        return self.blocks.nbytes + self.tail.nbytes
