"""A KV cache of the latest positions: a rolling window with attention sinks."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from suffice.utils.torch_compat import usable

MIN_SLACK = 8  # least spare positions after the window, so that it is moved rarely


@dataclass(frozen=True)
class Rolling(Memory):
    """The latest `window` positions are kept, and the first `sinks`.

    Exact for patterns that reach no further than the window, whatever the chunks, and then the
    sinks are not needed. A layer that would see more sees the window and the sinks instead.

    Choose it for endless sequences: it never grows.

    Args:
        window: latest positions, a query's own included, >= 1.
        sinks: first positions that are never forgotten.
        spare: last positions that can be dropped again, as drafts that are refused are.

    Raises:
        ConfigError: for a window below 1 or negative numbers.

    Cost: window + sinks + spare + max(window, 8) positions.
    Source: Jiang et al. 2023, arXiv:2310.06825, section 2 (rolling buffer); Xiao et al. 2023,
        arXiv:2309.17453 (sinks). Differs: positions stay those of the text.
    """

    window: int
    sinks: int = 0
    spare: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or self.sinks < 0 or self.spare < 0:
            raise ConfigError(
                f"{self!r}: give a window of at least 1, the query's own position, and no negative "
                "numbers."
            )

    def widened(self, window: int) -> Rolling:
        """Return it with the larger window."""
        return replace(self, window=max(self.window, window))

    def entries(self, tokens: int, unit: int = 1) -> int:
        """Return the latest entries and the sinks, which are kept apart."""
        window, sinks, spare = self._in_units(unit)
        return min(tokens // unit, window + spare) + min(tokens // unit, sinks)

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return RollingStore(*self._in_units(unit), min_slack=max(MIN_SLACK // unit, 1))

    def _in_units(self, unit: int) -> tuple[int, int, int]:
        """Return window, sinks and spare; entries of several positions are never dropped."""
        if unit == 1:
            return self.window, self.sinks, self.spare
        return ceil((self.window - 1 + self.spare) / unit) + 1, ceil(self.sinks / unit), 0

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return small ones, with sinks and without."""
        return (cls(3), cls(4, sinks=2, spare=2))


class RollingStore(Store):
    """A buffer with the latest entries at its end, moved to its start when it is full.

    Sinks are copied in front of the latest entries, so that attention reads one piece.
    """

    def __init__(self, window: int, sinks: int, spare: int, min_slack: int) -> None:
        super().__init__()
        self.window, self.num_sinks, self.spare = window, sinks, spare
        self.slack = max(window, min_slack)  # entries of room to move rarely
        self.max_past = window - 1 + spare  # cached entries read together with new ones
        self.buffers: tuple[Tensor, ...] = ()
        self.sinks: tuple[Tensor, ...] = ()
        self.end = 0  # of the entries, in the buffer
        self.oldest = 0  # position of the first entry in the buffer

    @property
    def past(self) -> int:
        """Cached entries that are read together with new ones."""
        return min(self.max_past, self.length - self.oldest)

    def append(self, *tensors: Tensor) -> CachedTensors:
        """Append positions; return them behind as much of the past as they may see."""
        if need_gradients(tensors):
            raise ConfigError(
                "a rolling memory is written in place, which gradients cannot pass; stream under "
                "torch.no_grad(), or use Dynamic()."
            )
        self.buffers = usable(self.buffers)
        if self.length < self.num_sinks:
            self._append_sinks(tensors)
        past, new = self.past, tensors[0].shape[2]
        first = self.length - past
        if not self.buffers or not (self.length or can_write(self.buffers, tensors)):
            room = self.num_sinks + self.max_past + 1 + self.slack
            self.buffers = tuple(x.new_empty(*x.shape[:2], room, x.shape[3]) for x in tensors)
        if self.num_sinks + past + new > self.buffers[0].shape[2]:
            cached = self._append_many(tensors, past, first)
        else:
            cached = self._append_few(tensors, past, first)
        self.length += new
        return cached

    def reserve(self, positions: int = 1) -> Slot:
        """Append at most `slack` positions that the caller writes; sinks must be there already."""
        check_sizes_known(self.buffers)
        if self.length < self.num_sinks:
            raise ConfigError(
                f"{self.length} positions of {self.num_sinks} sinks are there; append the others."
            )
        if self.end + positions > self.buffers[0].shape[2]:
            self.buffers = usable(self.buffers)
            self._move_to_start(self.past)
        before = self.view()
        self.end += positions
        self.length += positions
        return Slot(before._replace(end=self.end))

    def view(self) -> BufferView:
        """Return the location of the latest positions that the next query may see."""
        span = {"start": self.end - self.past, "end": self.end, "first": self.length - self.past}
        return BufferView(self.buffers, sinks=self.sinks, **span)

    def _append_few(self, tensors: tuple[Tensor, ...], past: int, first: int) -> CachedTensors:
        new, sinks = tensors[0].shape[2], min(self.num_sinks, first)
        if self.end + new > self.buffers[0].shape[2]:
            self._move_to_start(past)
        for buffer, x in zip(self.buffers, tensors, strict=True):
            buffer[:, :, self.end : self.end + new] = x
        start = self.end - past
        self.end += new
        if sinks:
            for buffer, sink in zip(self.buffers, self.sinks, strict=True):
                buffer[:, :, start - sinks : start] = sink[:, :, :sinks]
            self.oldest = max(self.oldest, first)
        read = slice(start - sinks, self.end)
        return CachedTensors(tuple(buffer[:, :, read] for buffer in self.buffers), first, sinks)

    def _append_many(self, tensors: tuple[Tensor, ...], past: int, first: int) -> CachedTensors:
        """Return a concatenation of more than the buffer holds, and keep the end of it."""
        sinks = min(self.num_sinks, first)
        all_sinks = self.sinks or tuple(x[:, :, :0] for x in tensors)
        joined = tuple(
            torch.cat([sink[:, :, :sinks], old[:, :, self.end - past : self.end], new], dim=2)
            for sink, old, new in zip(all_sinks, self.buffers, tensors, strict=True)
        )
        total = past + tensors[0].shape[2]
        count, start = min(self.max_past, total), self.num_sinks
        for buffer, x in zip(self.buffers, joined, strict=True):
            buffer[:, :, start : start + count] = x[:, :, x.shape[2] - count :]
        self.end, self.oldest = start + count, first + total - count
        return CachedTensors(joined, first, sinks)

    def _move_to_start(self, past: int) -> None:
        start = self.num_sinks
        for buffer in self.buffers:
            buffer[:, :, start : start + past] = buffer[:, :, self.end - past : self.end].clone()
        self.end, self.oldest = start + past, self.length - past

    def _append_sinks(self, tensors: tuple[Tensor, ...]) -> None:
        old = self.sinks or tuple(x[:, :, :0] for x in tensors)
        missing = self.num_sinks - self.length
        self.sinks = tuple(
            torch.cat([sink[:, :, : self.length], x[:, :, :missing]], dim=2)
            for sink, x in zip(old, tensors, strict=True)
        )

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions."""
        return tuple(buffer[:, :, self.end - positions : self.end] for buffer in self.buffers)

    def can_drop(self, positions: int) -> bool:
        """Return whether the window before the positions that remain is still kept."""
        if not 0 <= positions <= self.length:
            return False
        remaining = self.length - positions
        return self.oldest <= remaining - min(self.window - 1, remaining)

    def _drop_limit(self) -> str:
        return f" and whose spare is {self.spare}"

    def _drop(self, positions: int) -> None:
        self.end -= positions

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.buffers = tuple(buffer.index_select(0, rows) for buffer in self.buffers)
        self.sinks = tuple(sink.index_select(0, rows) for sink in self.sinks)

    def reset(self) -> None:
        """Forget everything."""
        self.sinks, self.end, self.oldest, self.length = (), 0, 0, 0

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer and of the sinks."""
        return bytes_of(self.buffers + self.sinks)
