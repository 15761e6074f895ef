"""The loss of a language model: summed over the targets, in fp32 whatever the products are in.

What a training lowers is an `Objective`; cross-entropy is the usual one, and what the weights are
chosen by whatever was lowered.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from suffice.data.dataset import NOT_ASKED
from suffice.text import TokenFile, Tokenizer
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.evaluate import aligned, evaluating, losses
from suffice.train.language.settings import DTYPES
from suffice.train.sharded import is_sharded, let_go


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


class Objective(Protocol):
    """What a training lowers.

    Attributes:
        facts: what makes this objective this objective, for the checkpoint; JSON, empty for
            cross-entropy.
    """

    facts: Mapping[str, object]

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over a batch's targets, fp32, for which gradients are computed."""


class CrossEntropy:
    """The loss of the targets themselves."""

    facts: Mapping[str, object] = {}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum of the losses of a batch's targets."""
        return summed(model, batch, dtype=dtype)


def autocast(device: torch.device, dtype: str) -> contextlib.AbstractContextManager[object]:
    """Return the block in which products are computed in a dtype of `LMTraining`."""
    lower = DTYPES[dtype]
    if lower is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=lower)


def summed(model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
    """Return the sum of the losses of a batch's targets, fp32; 0 where nothing is asked.

    Raises:
        ShapeError: if the model does not give logits for each token.
    """
    return losses(*logits(model, batch, dtype=dtype), reduction="sum")


def logits(model: nn.Module, batch: Batch, *, dtype: str) -> tuple[Tensor, Tensor]:
    """Return the logits [B T, V] and the targets [B T] of a batch."""
    where = {"valid": batch.valid, "segments": batch.segments}
    given = {name: marks for name, marks in where.items() if marks is not None}
    with autocast(batch.tokens.device, dtype):
        found = model(batch.tokens, **given)
    return aligned(found, batch.targets)


def evaluate_lm(
    model: nn.Module,
    file: TokenFile,
    *,
    length: int,
    batch_size: int = 16,
    batches: int | None = None,
    dtype: str = "float32",
    separate: bool = False,
    device: str = "cpu",
) -> float:
    """Return the mean loss over the targets of a text, in nats, shared between the processes.

    Windows follow each other and overlap by one token, so each token but the first is predicted
    once, from those before it in its window. The model is moved to the device; its training flags
    are the same afterwards.

    Args:
        model: of the text's tokens.
        file: the text.
        length: tokens of a window; a shorter text is one window.
        batch_size: windows at once.
        batches: how many of them, spread evenly over the text; None = all of it.
        dtype: of the products, as in `LMTraining`.
        separate: whether documents that share a window are kept apart.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: if the text holds one token, or the device does not exist.
    """
    processes, place = current(), resolve_device(device)
    model.to(place)
    sums = torch.zeros(2, dtype=torch.float64, device=place)
    parted = is_sharded(model)
    found = places(file, length, batch_size, batches)
    with evaluating(model), torch.no_grad() if parted else torch.inference_mode():
        for (start, stop, reads), counted in _mine(found, processes, alike=parted):
            batch = _batch(file, start, stop, reads, separate=separate)
            loss = summed(model, batch.to(place), dtype=dtype)
            asked = torch.tensor(float(batch.asked), device=place)
            sums += counted * torch.stack([loss.double(), asked])
    let_go(model)
    loss, asked = processes.sum(sums).tolist()
    return loss / asked


def places(
    file: TokenFile, length: int, size: int, batches: int | None
) -> list[tuple[int, int, int]]:
    """Return (first token, token after the last start, tokens read) of each batch of windows.

    The last one is of what is left of the text, fewer tokens than a window.
    """
    whole, left = divmod(len(file) - 1, length)
    found = [
        (first * length, min(first + size, whole) * length, length)
        for first in range(0, whole, size)
    ]
    if left or not whole:
        found.append((whole * length, whole * length + 1, left))
    if batches is None or batches >= len(found):
        return found
    return [found[number * len(found) // batches] for number in range(batches)]


def _batch(file: TokenFile, start: int, stop: int, reads: int, *, separate: bool) -> Batch:
    return window(file, torch.arange(start, stop, reads), reads, separate=separate)


def _mine(
    found: list[tuple[int, int, int]], processes: Processes, *, alike: bool
) -> Iterator[tuple[tuple[int, int, int], bool]]:
    """Yield this process's batches and whether each counts.

    Processes that hold parts of one model call it equally often: those short of a batch compute
    one that does not count.
    """
    start, stop = processes.share(len(found))
    yield from ((one, True) for one in found[start:stop])
    most = -(-len(found) // processes.world_size)
    if alike and stop - start < most:
        yield found[0], False


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The size of a text in three units.

    Args:
        tokens: those between documents included.
        characters: code points.
        bytes: of UTF-8.
    """

    tokens: int
    characters: int
    bytes: int

    def bits(self, loss: float) -> dict[str, float]:
        """Return a mean loss of tokens, in nats, as bits for each character and each byte.

        Example:
            >>> Amount(tokens=2, characters=4, bytes=8).bits(math.log(2))
            {'bits_per_character': 0.5, 'bits_per_byte': 0.25}
        """
        bits = loss / math.log(2) * self.tokens
        return {
            "bits_per_character": bits / self.characters,
            "bits_per_byte": bits / self.bytes,
        }


def amount(file: TokenFile, tokenizer: Tokenizer) -> Amount:
    """Count the text of a file of tokens; one document is decoded at a time.

    Raises:
        ConfigError: if the file's ids are not the tokenizer's.
    """
    characters = size = 0
    around = {tokenizer.begin, tokenizer.end}
    for number in range(file.header.documents):
        ids = [one for one in file.document(number).tolist() if one not in around]
        text = tokenizer.decode(ids)
        characters += len(text)
        size += len(text.encode())
    return Amount(tokens=len(file), characters=characters, bytes=size)
