"""Rows of tokens and what is to be predicted at each.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from suffice.data.dataset import NOT_ASKED
from suffice.text import TokenFile
from suffice.train.distributed import Processes


class Batch(NamedTuple):
    """Some rows.

    Args:
        tokens: int64 [B, T], what is read.
        targets: int64 [B, T], the token that follows each; NOT_ASKED where none is asked.
        valid: bool [B, T], True = a real token; None = all are.
        segments: int64 [B, T], runs of equal numbers are documents; None = one document.
    """

    tokens: Tensor
    targets: Tensor
    valid: Tensor | None = None
    segments: Tensor | None = None

    @property
    def asked(self) -> int:
        """How many targets there are."""
        return int((self.targets != NOT_ASKED).sum())

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(*(None if t is None else t.to(device) for t in self))


class Source(Protocol):
    """Where rows to learn from come from.

    Attributes:
        facts: what makes this source this source; JSON.
    """

    facts: dict[str, object]

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows start..stop - 1 of a step's batch: a pure function of the arguments."""


@dataclass(frozen=True)
class Windows:
    """Random windows of a file of tokens.

    Args:
        file: of tokens.
        size: rows of a step.
        length: tokens of a row.
        seed: of the draw.
        separate: whether documents that share a row are kept apart.
    """

    file: TokenFile
    size: int
    length: int
    seed: int
    separate: bool = False

    @property
    def facts(self) -> dict[str, object]:
        """What the file is, wherever it lies."""
        return facts(self.file)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows of a step's batch."""
        places = self.file.places(self.size, self.length, seed=self.seed, step=step)
        return window(self.file, places[start:stop], self.length, separate=self.separate)


def window(file: TokenFile, places: Tensor, length: int, *, separate: bool) -> Batch:
    """Return the windows of a file that start at some places."""
    taken = file.take(places, length)
    tokens, targets = taken[:, :-1].contiguous(), taken[:, 1:].contiguous()
    if not separate:
        return Batch(tokens, targets)
    numbers = file.segments(places, length)
    targets = targets.masked_fill(numbers[:, 1:] != numbers[:, :-1], NOT_ASKED)
    return Batch(tokens, targets, None, numbers[:, :-1].contiguous())


def facts(file: TokenFile) -> dict[str, object]:
    """Return what a file of tokens is, wherever it lies."""
    header = file.header
    return {
        "tokens": header.tokens,
        "documents": header.documents,
        "tokenizer": header.tokenizer,
    }


def shares(size: int, accumulate: int, processes: Processes) -> list[tuple[int, int, int, int]]:
    """Return this process's rows of each micro-batch: (start, stop, first row, rows in all).

    A micro-batch is a contiguous part of the batch, and each process takes a contiguous part of it,
    so that masks of dropout drawn for a micro-batch are those of one process.

    Example:
        >>> shares(5, 2, Processes(1, 2))
        [(1, 2, 1, 2), (3, 5, 1, 3)]
    """
    found = []
    for number in range(accumulate):
        first, last = Processes(number, accumulate).share(size)
        start, stop = processes.share(last - first)
        found.append((first + start, first + stop, start, last - first))
    return found
