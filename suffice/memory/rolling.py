"""A memory of the latest positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

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

SLACK = 64  # positions of room at least, so that the latest are moved rarely


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

    Cost: window + sinks + spare + max(window, 64) positions.
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
        """Return the latest entries and the sinks, which are held apart."""
        window, sinks, spare = self._in_units(unit)
        return min(tokens // unit, window + spare) + min(tokens // unit, sinks)

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return RollingStore(*self._in_units(unit))

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
    """A buffer with the latest positions at its end, moved to its start when it is full.

    What is held before the latest is the room that sinks are copied to, so that attention reads one
    stretch.

    Args:
        window: latest entries, the newest included.
        sinks: first entries.
        spare: entries that can be dropped.
    """

    def __init__(self, window: int, sinks: int, spare: int) -> None:
        super().__init__()
        self.window, self.first_kept, self.spare = window, sinks, spare
        self.kept = window - 1 + spare  # of the past, as the next ones are appended
        self.buffers: tuple[Tensor, ...] = ()
        self.sinks: tuple[Tensor, ...] = ()
        self.end = 0  # of what is held, in the buffer
        self.oldest = 0  # where the first position in the buffer stands

    def append(self, *parts: Tensor) -> Held:
        """Keep positions; return them behind as much of the past as they may see."""
        if recorded(parts):
            raise ConfigError(
                "a rolling memory is written in place, which gradients cannot pass; stream under "
                "torch.no_grad(), or use Dynamic()."
            )
        self.buffers = usable(self.buffers)
        new, sinks = parts[0].shape[2], self.first_kept
        if self.length < sinks:
            self._keep_sinks(parts)
        past = min(self.kept, self.length - self.oldest)
        first = self.length - past
        if not self.buffers or not (self.length or fits(self.buffers, parts)):
            room = sinks + self.kept + 1 + max(self.window, SLACK)
            self.buffers = tuple(p.new_empty(*p.shape[:2], room, p.shape[3]) for p in parts)
        if sinks + past + new > self.buffers[0].shape[2]:
            held = self._long(parts, past, first)
        else:
            held = self._short(parts, past, first)
        self.length += new
        return held

    def claim(self) -> Claim:
        """Keep one more position, which the caller writes; the first sinks are appended."""
        check_begun(self.buffers)
        if self.length < self.first_kept:
            raise ConfigError(
                f"{self.length} positions of {self.first_kept} sinks are there; append the others."
            )
        if self.end == self.buffers[0].shape[2]:
            self.buffers = usable(self.buffers)
            self._move(min(self.kept, self.length - self.oldest))
        before = self.stretch()
        self.end += 1
        self.length += 1
        return Claim(before._replace(end=self.end))

    def stretch(self) -> Stretch:
        """Return where the latest positions lie that the next one may see."""
        past = min(self.kept, self.length - self.oldest)
        at = {"start": self.end - past, "end": self.end, "first": self.length - past}
        return Stretch(self.buffers, sinks=self.sinks, **at)

    def _short(self, parts: tuple[Tensor, ...], past: int, first: int) -> Held:
        """Append in the buffer."""
        new, sinks = parts[0].shape[2], min(self.first_kept, first)
        if self.end + new > self.buffers[0].shape[2]:
            self._move(past)
        for buffer, part in zip(self.buffers, parts, strict=True):
            buffer[:, :, self.end : self.end + new] = part
        start = self.end - past
        self.end += new
        if sinks:
            for buffer, sink in zip(self.buffers, self.sinks, strict=True):
                buffer[:, :, start - sinks : start] = sink[:, :, :sinks]
            self.oldest = max(self.oldest, first)
        read = slice(start - sinks, self.end)
        return Held(tuple(buffer[:, :, read] for buffer in self.buffers), first, sinks)

    def _long(self, parts: tuple[Tensor, ...], past: int, first: int) -> Held:
        """Join more than the buffer holds; keep the end of it."""
        sinks = min(self.first_kept, first)
        begun = self.sinks or tuple(part[:, :, :0] for part in parts)
        joined = tuple(
            torch.cat([b[:, :, :sinks], old[:, :, self.end - past : self.end], part], dim=2)
            for b, old, part in zip(begun, self.buffers, parts, strict=True)
        )
        total = past + parts[0].shape[2]
        kept, at = min(self.kept, total), self.first_kept
        for buffer, whole in zip(self.buffers, joined, strict=True):
            buffer[:, :, at : at + kept] = whole[:, :, whole.shape[2] - kept :]
        self.end, self.oldest = at + kept, first + total - kept
        return Held(joined, first, sinks)

    def _move(self, past: int) -> None:
        """Bring the latest positions to the start of the buffer, behind room for the sinks."""
        at = self.first_kept
        for buffer in self.buffers:
            buffer[:, :, at : at + past] = buffer[:, :, self.end - past : self.end].clone()
        self.end, self.oldest = at + past, self.length - past

    def _keep_sinks(self, parts: tuple[Tensor, ...]) -> None:
        new = (p[:, :, : self.first_kept - self.length] for p in parts)
        old = self.sinks or tuple(p[:, :, :0] for p in parts)
        self.sinks = tuple(
            torch.cat([o[:, :, : self.length], n], dim=2) for o, n in zip(old, new, strict=True)
        )

    def latest(self, positions: int) -> tuple[Tensor, ...]:
        """Return the last positions."""
        return tuple(buffer[:, :, self.end - positions : self.end] for buffer in self.buffers)

    def can_drop(self, positions: int) -> bool:
        """Return whether enough of the past is held for what comes instead of them."""
        if not 0 <= positions <= self.length:
            return False
        left = self.length - positions
        needed = min(self.window - 1, left)
        return self.oldest <= left - needed

    def _why_not(self) -> str:
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
