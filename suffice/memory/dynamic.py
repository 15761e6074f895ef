"""A memory that grows with the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory.base import (
    Claim,
    Held,
    Memory,
    Store,
    Stretch,
    bytes_of,
    check_begun,
    fits,
    recorded,
)
from suffice.torch_compat import usable

LEAST = 64  # positions of room beside what is held
SHARE = 4  # of what is held is the room beside it


@dataclass(frozen=True)
class Dynamic(Memory):
    """Everything is kept, in room that grows by a quarter whenever it is full.

    Choose it where the length is not known. Everything comes back exactly.

    Cost: at most 5 / 4 of what is held and 64 positions.
    """

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return GrowingStore(max(LEAST // unit, 1))


class GrowingStore(Store):
    """Buffers with room at the end; where gradients flow, tensors that are joined instead.

    Args:
        least: entries of room beside what is held.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.buffers: tuple[Tensor, ...] = ()
        self.room = 0  # positions that may be written in place

    def append(self, *parts: Tensor) -> Held:
        """Keep positions and return all."""
        end = self.length + parts[0].shape[2]
        self.buffers = usable(self.buffers)
        if recorded(parts + self.buffers):
            old = self._held() if self.length else tuple(part[:, :, :0] for part in parts)
            self.buffers = tuple(torch.cat(pair, dim=2) for pair in zip(old, parts, strict=True))
            self.room = 0
        else:
            if end > self.room or not fits(self.buffers, parts):
                self._grow(parts, self._room(end))
            else:
                for buffer, part in zip(self.buffers, parts, strict=True):
                    buffer[:, :, self.length : end] = part
        self.length = end
        return Held(self._held(), 0)

    def claim(self) -> Claim:
        """Keep one more position, which the caller writes."""
        check_begun(self.buffers)
        self.check_room(1)
        if self.length == self.room:
            self._grow(tuple(b[:, :, :0] for b in self.buffers), self._room(self.length + 1))
        self.length += 1
        return Claim(self.stretch())

    def stretch(self) -> Stretch:
        """Return where everything lies."""
        return Stretch(self.buffers, start=0, end=self.length, first=0)

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions."""
        return tuple(b[:, :, self.length - positions : self.length] for b in self.buffers)

    def _held(self) -> tuple[Tensor, ...]:
        return tuple(buffer[:, :, : self.length] for buffer in self.buffers)

    def _room(self, end: int) -> int:
        """Return how many positions the buffers get to hold so many."""
        return end + max(self.least, end // SHARE)

    def _grow(self, parts: tuple[Tensor, ...], room: int) -> None:
        """Put what is held and new positions into larger buffers.

        They are joined, not written one by one: a compiler must see no writing into what it makes.
        """
        held = self._held() if self.length else tuple(part[:, :, :0] for part in parts)
        spare = room - self.length - parts[0].shape[2]
        self.buffers = tuple(
            torch.cat([old, part, part.new_zeros(*part.shape[:2], spare, part.shape[3])], dim=2)
            for old, part in zip(held, parts, strict=True)
        )
        self.room = room

    def _drop(self, positions: int) -> None:
        """Leave the last ones to be written over."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.buffers = tuple(buffer.index_select(0, rows) for buffer in self.buffers)

    def reset(self) -> None:
        """Forget everything."""
        self.length = 0
        if any(buffer.requires_grad for buffer in self.buffers):  # they hold a whole graph
            self.buffers, self.room = (), 0

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return bytes_of(self.buffers)


@dataclass(frozen=True)
class Static(Memory):
    """Everything is kept, up to a length that is made room for at once.

    Choose it where memory must be known beforehand. Everything comes back exactly; one position too
    many is refused before anything is changed.

    Args:
        length: positions, >= 1.

    Raises:
        ConfigError: if length < 1.
    """

    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ConfigError(f"Static(length={self.length}) holds nothing; give at least 1.")

    @property
    def capacity(self) -> int:  # type: ignore[override]
        """The length."""
        return self.length

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return FixedStore(-(-self.length // unit))

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return one that the tests do not fill."""
        return (cls(64),)


class FixedStore(GrowingStore):
    """Buffers of one size.

    Args:
        capacity: positions.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(least=0)
        self.capacity = capacity

    def append(self, *parts: Tensor) -> Held:
        """Keep positions and return all."""
        self.check_room(parts[0].shape[2])
        return super().append(*parts)

    def check_room(self, positions: int) -> None:
        """Refuse positions beyond the capacity."""
        if self.length + positions > self.capacity:
            raise ConfigError(
                f"{positions} more positions do not fit beside {self.length} in "
                f"Static(length={self.capacity}); give a longer one, or reset the state."
            )

    def _room(self, end: int) -> int:  # noqa: ARG002 - always the same
        return self.capacity
