"""What a streaming layer keeps of the past.

A `Memory` is a value (what is kept), a `Store` holds the numbers of one layer. A store knows
tensors [B, G, n, W] that grow along n together and nothing of what they mean; a layer puts keys
and values there, and what attention reads comes back as one stretch of memory.

Letters: B batch, G heads, n positions, W width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.records import Axis


class Held(NamedTuple):
    """What a store gives back.

    Args:
        parts: [B, G, S, W] each, what was given last at the end.
        first: where the first of the last S - sinks positions stands, counted from the first ever.
        sinks: how many positions of the very beginning stand before them.
    """

    parts: tuple[Tensor, ...]
    first: int
    sinks: int = 0


class Stretch(NamedTuple):
    """Positions where they lie, for code that reads memory itself.

    Args:
        parts: [B, G, room, W] each, in one piece.
        start: of what is held, in the room.
        end: of it; the next position is written there.
        first: where the one at `start` stands, counted from the first ever.
        sinks: [B, G, n, W] each, the very beginning where it is held apart; or nothing.
    """

    parts: tuple[Tensor, ...]
    start: int
    end: int
    first: int
    sinks: tuple[Tensor, ...] = ()


class Claim(NamedTuple):
    """Room for one position, and what is held beside it.

    Args:
        near: the latest positions as they are; the last one is the caller's to write.
        coded: those before them that are coded, in blocks, if any are.
        raw: values before a mixing, which the caller writes, too; the keys, where keys are those.
    """

    near: Stretch
    coded: Stretch | None = None
    raw: Stretch | None = None


class Memory(Axis, ABC, family="memory"):
    """Base of the memories."""

    window: int | None = None
    """Latest positions that are kept; None = all."""

    sinks: int = 0
    """Positions of the very beginning that are kept beside them."""

    spare: int = 0
    """Last positions that can be dropped beside the window."""

    capacity: int | None = None
    """Positions there is room for; None = any number."""

    grain: int = 0
    """Positions that may be held beyond the window, because they are kept in blocks."""

    rounds: bool = False
    """True if what comes back is not exactly what was given."""

    def widened(self, window: int) -> Memory:  # noqa: ARG002 - without a window everything is kept
        """Return the memory with a window of at least so many positions."""
        return self

    def entries(self, tokens: int, unit: int = 1) -> int:
        """Return how many entries a store holds after so many tokens.

        Args:
            tokens: appended so far.
            unit: positions that one entry of the store stands for; a last part of one is left out.
        """
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
        """Return an empty store; its sizes are those of what is appended first.

        Args:
            unit: positions that one entry of the store stands for.
        """


class Store(ABC):
    """Tensors [B, G, n, W] that grow along n together, in the order they are appended.

    `length` is how many positions were appended and not dropped again.
    """

    def __init__(self) -> None:
        self.length = 0

    @abstractmethod
    def append(self, *parts: Tensor) -> Held:
        """Keep positions and return what is held, the new ones last.

        Args:
            parts: [B, G, n, W], the same number of tensors in every call.

        Raises:
            ConfigError: if there is no room; nothing has changed then.
        """

    def check_room(self, positions: int) -> None:
        """Refuse more positions than there can be room for; nothing changes.

        Raises:
            ConfigError: if they do not fit.
        """
        del positions  # there is room for any number

    def claim(self) -> Claim:
        """Keep one more position, which the caller writes, and say where.

        Raises:
            ConfigError: if there is no room, or nothing was appended before that would tell sizes;
                nothing has changed then.
        """
        raise ConfigError(f"{type(self).__name__} gives out no room; append positions.")

    @abstractmethod
    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions of what is held, [B, G, positions, W]."""

    def can_drop(self, positions: int) -> bool:
        """Return whether so many last positions can be taken back."""
        return 0 <= positions <= self.length

    def drop_last(self, positions: int) -> None:
        """Take the last positions back, as if they had never been appended.

        Raises:
            ConfigError: if they cannot be; nothing has changed then.
        """
        if not self.can_drop(positions):
            raise ConfigError(
                f"drop_last({positions}) of a memory that holds {self.length} positions"
                f"{self._why_not()}; ask can_drop first."
            )
        self._drop(positions)
        self.length -= positions

    @abstractmethod
    def _drop(self, positions: int) -> None:
        """Forget the last positions; `length` still counts them."""

    def _why_not(self) -> str:
        """Say what else limits dropping."""
        return ""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order; a row may come several times."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; memory is kept for the next sequence."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all tensors that are held, spare room included."""


def bytes_of(tensors: tuple[Tensor, ...]) -> int:
    """Return the bytes of tensors, each storage counted once.

    Example:
        >>> x = torch.zeros(2, 8)
        >>> bytes_of((x, x))
        64
    """
    return sum({x.data_ptr(): x.numel() * x.element_size() for x in tensors}.values())


def fits(buffers: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> bool:
    """Return whether buffers are for as many rows as these, and of their dtype and device."""
    if not buffers or buffers[0].shape[0] != parts[0].shape[0]:
        return False
    pairs = zip(buffers, parts, strict=True)
    return all(b.dtype is part.dtype and b.device == part.device for b, part in pairs)


def check_begun(buffers: tuple[Tensor, ...]) -> None:
    """Refuse to give out room of unknown sizes.

    Raises:
        ConfigError: if nothing was appended yet.
    """
    if not buffers:
        raise ConfigError(
            "nothing was appended yet, so the sizes of a position are unknown; append the first."
        )


def recorded(parts: tuple[Tensor, ...]) -> bool:
    """Return whether gradients flow through these, so that nothing may be written in place."""
    return torch.is_grad_enabled() and any(part.requires_grad for part in parts)
