"""KV caches of all positions: Dynamic grows with the text, Static has a fixed capacity."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory.base import (
    BufferView,
    CachedTensors,
    Memory,
    Slot,
    Store,
    bytes_of,
    can_write,
    check_sizes_known,
    need_gradients,
)
from suffice.utils.records import derived
from suffice.utils.torch_compat import usable

MIN_SPARE = 64  # least spare positions
SPARE_SHARE = 4  # spare room is at least 1 / SPARE_SHARE of what is kept


@dataclass(frozen=True)
class Dynamic(Memory):
    """Everything is kept, in buffers that grow by a quarter whenever they are full.

    Choose it where the length is not known. Everything comes back exactly.

    Cost: at most 5 / 4 of what is kept and 64 positions.
    """

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return GrowingStore(max(MIN_SPARE // unit, 1))


@dataclass(frozen=True)
class Static(Memory):
    """Everything is kept, in buffers that are allocated at once for a given length.

    Choose it where the memory used must be known beforehand. Everything comes back exactly; one
    position too many is refused before anything is changed.

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

    capacity = derived(lambda self: self.length)

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return FixedStore(ceil(self.length / unit))

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return one that the tests do not fill."""
        return (cls(64),)


class GrowingStore(Store):
    """Buffers with room at the end; where gradients flow, tensors that are concatenated instead."""

    def __init__(self, min_spare: int) -> None:
        super().__init__()
        self.min_spare = min_spare
        self.buffers: tuple[Tensor, ...] = ()
        self.room = 0  # positions that may be written in place

    def append(self, *tensors: Tensor) -> CachedTensors:
        """Append positions and return all."""
        end = self.length + tensors[0].shape[2]
        self.buffers = usable(self.buffers)
        if need_gradients(tensors + self.buffers):
            self._concatenate(tensors, room=None)
        elif end > self.room or not can_write(self.buffers, tensors):
            self._concatenate(tensors, self._room_for(end))
        else:
            for buffer, new in zip(self.buffers, tensors, strict=True):
                buffer.narrow(2, self.length, new.shape[2]).copy_(new)
        self.length = end
        return CachedTensors(self._contents(), 0)

    def reserve(self, positions: int = 1) -> Slot:
        """Append positions that the caller writes."""
        check_sizes_known(self.buffers)
        self.check_room(positions)
        end = self.length + positions
        if end > self.room:
            self._concatenate(tuple(b[:, :, :0] for b in self.buffers), self._room_for(end))
        self.length = end
        return Slot(self.view())

    def view(self) -> BufferView:
        """Return the location of all entries."""
        return BufferView(self.buffers, start=0, end=self.length, first=0)

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions."""
        return tuple(b[:, :, self.length - positions : self.length] for b in self.buffers)

    def _contents(self) -> tuple[Tensor, ...]:
        return tuple(buffer.narrow(2, 0, self.length) for buffer in self.buffers)

    def _room_for(self, end: int) -> int:
        return end + max(self.min_spare, end // SPARE_SHARE)

    def _concatenate(self, tensors: tuple[Tensor, ...], room: int | None) -> None:
        """Copy all positions into buffers with this room, without in-place writes for compilers."""
        old = self._contents() if self.length else tuple(new[:, :, :0] for new in tensors)
        pieces = [list(pair) for pair in zip(old, tensors, strict=True)]
        if room is not None:
            spare = room - self.length - tensors[0].shape[2]
            for piece, new in zip(pieces, tensors, strict=True):
                piece.append(new.new_zeros(*new.shape[:2], spare, new.shape[3]))
        self.buffers = tuple(torch.cat(piece, dim=2) for piece in pieces)
        self.room = room or 0

    def _drop(self, positions: int) -> None:
        """Leave the last ones to be overwritten."""

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


class FixedStore(GrowingStore):
    """Buffers of a fixed number of positions, `capacity`."""

    def __init__(self, capacity: int) -> None:
        super().__init__(min_spare=0)
        self.capacity, self.memory = capacity, Static(capacity)

    def append(self, *tensors: Tensor) -> CachedTensors:
        """Append positions and return all."""
        self.check_room(tensors[0].shape[2])
        return super().append(*tensors)

    def check_room(self, positions: int) -> None:
        """Check that the positions fit."""
        self._check_capacity(positions, self.capacity, self.memory)

    def _room_for(self, end: int) -> int:  # noqa: ARG002 - always the same
        return self.capacity
