"""The protocol of KV caches: policies and their stores.

A `Memory` is a value: which positions are kept, and how. A `Store` holds the tensors of one layer:
[B, G, n, W] each, growing along n together. It knows nothing of their meaning; a layer appends keys
and values, and gets back what attention reads.

Letters: B batch, G heads, n positions, W width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.utils.records import Axis


class CachedTensors(NamedTuple):
    """The contents of a store, the newest positions last.

    With sinks=2 and first=5 the tensors hold the positions 0, 1, 5, 6, 7, ... of the text.

    Args:
        tensors: [B, G, S, W] each.
        first: position of the first entry behind the sinks, counted from the start of the text.
        sinks: number of entries from the very start of the text, which come first.
    """

    tensors: tuple[Tensor, ...]
    first: int
    sinks: int = 0


class BufferView(NamedTuple):
    """Location of the entries in a store's buffers, for native code that reads them in place.

    Args:
        tensors: the buffers, [B, G, room, W] each, contiguous.
        start: first index of the entries in the buffers.
        end: end index of the entries; the next one is written there.
        first: position of the entry at `start`, counted from the start of the text.
        sinks: [B, G, n, W] each, the entries from the start of the text if they are held apart.
    """

    tensors: tuple[Tensor, ...]
    start: int
    end: int
    first: int
    sinks: tuple[Tensor, ...] = ()


class Slot(NamedTuple):
    """Reserved positions, with views of the cache before them.

    Args:
        recent: the latest positions in plain numbers; the caller writes the last ones.
        encoded: blocks of quantised positions before them, if there are any.
        unmixed: values before the mixing, whose last one the caller writes, too.
    """

    recent: BufferView
    encoded: BufferView | None = None
    unmixed: BufferView | None = None


class Memory(Axis, ABC, family="memory"):
    """Base of the memories."""

    window: int | None = None
    """Latest positions that are kept; None keeps all."""

    sinks: int = 0
    """Positions from the start of the text that are kept in addition to the window."""

    spare: int = 0
    """Last positions that can be dropped again without touching the window."""

    capacity: int | None = None
    """Capacity in positions; None if unlimited."""

    grain: int = 0
    """Positions that may be held beyond the window, because they are kept in blocks."""

    lossy: bool = False
    """True if numbers come back rounded."""

    def widened(self, window: int) -> Memory:  # noqa: ARG002 - without a window everything is kept
        """Return the memory with a window of at least `positions` positions."""
        return self

    def entries(self, tokens: int, unit: int = 1) -> int:
        """Return a store's entries after `tokens` tokens, complete ones of `unit` positions."""
        return tokens // unit

    def nbytes_of(self, widths: Sequence[tuple[int, int]], tokens: int, itemsize: int) -> int:
        """Return the bytes that a store holds for one row of the batch, without room to grow.

        Args:
            widths: heads and width of each tensor that is kept.
            tokens: appended so far.
            itemsize: bytes of a number as it is appended.

        Example:
            >>> from suffice.memory import Rolling
            >>> Rolling(64, sinks=4).nbytes_of([(8, 32), (8, 32)], tokens=2048, itemsize=2)
            69632
        """
        numbers = sum(heads * width for heads, width in widths)
        return self.entries(tokens) * numbers * itemsize

    @abstractmethod
    def build(self, unit: int = 1) -> Store:
        """Return an empty store with entries of `unit` positions, sized by the first append."""


class Store(ABC):
    """Tensors [B, G, n, W] that grow along n together.

    `length` is the number of positions appended and not dropped again.
    """

    def __init__(self) -> None:
        self.length = 0

    @abstractmethod
    def append(self, *tensors: Tensor) -> CachedTensors:
        """Append positions and return what is kept, the new ones last.

        Args:
            tensors: [B, G, n, W], the same number of tensors in every call.

        Raises:
            ConfigError: if there is no room; nothing has changed then.
        """

    def check_room(self, positions: int) -> None:  # noqa: B027 - unlimited by default
        """Raise ConfigError unless `positions` more positions fit."""

    def reserve(self, positions: int = 1) -> Slot:  # noqa: ARG002 - refused by default
        """Append positions that the caller writes.

        Raises:
            ConfigError: if there is no room, or sizes are unknown before the first append.
        """
        raise ConfigError(f"{type(self).__name__} does not support in-place writes; use append().")

    def _check_capacity(self, positions: int, capacity: int | None, memory: Memory) -> None:
        if capacity is not None and self.length + positions > capacity:
            raise ConfigError(
                f"{positions} more positions do not fit after {self.length} in {memory!r}; give a "
                "longer one, or reset the state."
            )

    @abstractmethod
    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions, [B, G, positions, W]."""

    def can_drop(self, positions: int) -> bool:
        """Return whether the last `positions` positions can be dropped."""
        return 0 <= positions <= self.length

    def drop_last(self, positions: int) -> None:
        """Drop the last positions, or raise ConfigError and change nothing."""
        if not self.can_drop(positions):
            raise ConfigError(
                f"drop_last({positions}) of a memory that holds {self.length} positions"
                f"{self._drop_limit()}; call can_drop first."
            )
        self._drop(positions)
        self.length -= positions

    @abstractmethod
    def _drop(self, positions: int) -> None:
        """Forget the last positions; `length` still counts them."""

    def _drop_limit(self) -> str:
        return ""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all positions; buffers are kept for the next sequence."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all tensors, room to grow included."""


def check_sizes_known(buffers: tuple[Tensor, ...]) -> None:
    """Raise ConfigError if nothing was appended yet."""
    if not buffers:
        raise ConfigError(
            "nothing was appended yet, so the sizes of a position are unknown; append the first."
        )


def bytes_of(tensors: tuple[Tensor, ...]) -> int:
    """Return the bytes of tensors; those of the same memory count once."""
    return sum({x.data_ptr(): x.numel() * x.element_size() for x in tensors}.values())


def can_write(buffers: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> bool:
    """Return whether buffers have the rows, dtype and device of tensors to be written there."""
    if not buffers or buffers[0].shape[0] != tensors[0].shape[0]:
        return False
    pairs = zip(buffers, tensors, strict=True)
    return all(b.dtype is x.dtype and b.device == x.device for b, x in pairs)


def need_gradients(tensors: tuple[Tensor, ...]) -> bool:
    """Return whether gradients flow through tensors, so that nothing may be written in place."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
