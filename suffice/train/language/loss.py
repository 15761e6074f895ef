"""Batches of tokens, and the loss of a language model: training objective and evaluation.

Losses are sums over the targets, in fp32 whatever dtype the products are in. A training minimises
an `Objective`; the weights are always chosen by cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from suffice.data.dataset import IGNORE_INDEX
from suffice.text import TokenFile, Tokenizer
from suffice.train.distributed import Processes, current, is_sharded, resolve_device
from suffice.train.evaluate import cross_entropy, evaluating, flatten_answers
from suffice.train.settings import autocast
from suffice.train.sharded import release_weights


class Batch(NamedTuple):
    """Rows of tokens and what follows them.

    Args:
        tokens: int64 [B, T], what the model reads.
        targets: int64 [B, T], the token that follows each; IGNORE_INDEX where there is no target.
        valid: bool [B, T], True = a real token; None if all are.
        segments: int64 [B, T], runs of equal numbers are documents; None for one document.
    """

    tokens: Tensor
    targets: Tensor
    valid: Tensor | None = None
    segments: Tensor | None = None

    @property
    def num_targets(self) -> int:
        """Number of targets, not counting ignored ones."""
        return int((self.targets != IGNORE_INDEX).sum())

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch._make(None if t is None else t.to(device) for t in self)


class ObjectiveSource(Protocol):
    """Gives the rows to learn from.

    Attributes:
        facts: identify the source in a checkpoint; JSON.
    """

    facts: dict[str, object]

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows start..stop - 1 of a step's batch: a pure function of the arguments."""
        ...


@dataclass(frozen=True)
class Windows:
    """Random windows of a file of tokens, of which a step reads `size` rows of `length` tokens."""

    file: TokenFile
    size: int
    length: int
    seed: int
    separate: bool = False  # keeps documents that share a row apart

    @property
    def facts(self) -> dict[str, object]:
        """Identity of the file, independent of its path."""
        return facts_of(self.file)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows of a step's batch."""
        places = self.file.places(self.size, self.length, seed=self.seed, step=step)
        return window(self.file, places[start:stop], self.length, separate=self.separate)


def window(file: TokenFile, places: Tensor, length: int, *, separate: bool) -> Batch:
    """Return the windows of a file that start at some places."""
    rows = file.take(places, length)
    tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    if not separate:
        return Batch(tokens, targets)
    numbers = file.segments(places, length)
    targets = targets.masked_fill(numbers[:, 1:] != numbers[:, :-1], IGNORE_INDEX)
    return Batch(tokens, targets, None, numbers[:, :-1].contiguous())


def facts_of(file: TokenFile) -> dict[str, object]:
    """Return a token file's identity, independent of its path."""
    header = file.header
    return {name: getattr(header, name) for name in ("tokens", "documents", "tokenizer")}


class Objective(Protocol):
    """Computes the loss that a training minimises.

    Attributes:
        facts: identify the objective in a checkpoint; JSON, empty for cross-entropy.
    """

    facts: Mapping[str, object]

    def summed_loss(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over a batch's targets, fp32, for which gradients are computed."""
        ...


def logits(model: nn.Module, batch: Batch, *, dtype: str) -> tuple[Tensor, Tensor]:
    """Return the logits [B T, V] and the targets [B T] of a batch."""
    marks = {"valid": batch.valid, "segments": batch.segments}
    marks = {name: tensor for name, tensor in marks.items() if tensor is not None}
    with autocast(batch.tokens.device, dtype):
        scores = model(batch.tokens, **marks)
    return flatten_answers(scores, batch.targets)


def summed_loss(model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
    """Return the sum of the losses of a batch's targets, fp32; 0 where there are none."""
    return cross_entropy(*logits(model, batch, dtype=dtype), reduction="sum")


class CrossEntropy:
    """The loss of the targets themselves."""

    facts: Mapping[str, object] = {}
    summed_loss = staticmethod(summed_loss)


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
        model: language model of the text's tokens.
        file: the text.
        length: tokens of a window; a shorter text is one window.
        batch_size: windows at once.
        batches: number of batches, spread evenly over the text; None reads all of it.
        dtype: dtype of the products, as in `LMTraining`.
        separate: whether documents that share a window are kept apart.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: if the text holds one token, or the device does not exist.
    """
    processes, place = current(), resolve_device(device)
    model.to(place)
    sums = torch.zeros(2, dtype=torch.float64, device=place)
    in_step = is_sharded(model)
    spans = _spans(file, length, batch_size, batches)
    with evaluating(model), torch.no_grad() if in_step else torch.inference_mode():
        for (start, stop, width), counts in _process_spans(spans, processes, in_step=in_step):
            batch = window(file, torch.arange(start, stop, width), width, separate=separate)
            loss = summed_loss(model, batch.to(place), dtype=dtype)
            targets = torch.tensor(float(batch.num_targets), device=place)
            sums += counts * torch.stack([loss.double(), targets])
    release_weights(model)
    loss, targets = processes.sum(sums).tolist()
    return loss / targets


Span = tuple[int, int, int]  # first token, token after the last start, tokens of a window


def _spans(file: TokenFile, length: int, size: int, batches: int | None) -> list[Span]:
    """Return each batch of windows; the last is of the tokens left over, fewer than a window."""
    count, left = divmod(len(file) - 1, length)
    spans = [
        (first * length, min(first + size, count) * length, length)
        for first in range(0, count, size)
    ]
    if left or not count:
        spans.append((count * length, count * length + 1, left))
    if batches is None or batches >= len(spans):
        return spans
    return [spans[number * len(spans) // batches] for number in range(batches)]


def _process_spans(
    spans: list[Span], processes: Processes, *, in_step: bool
) -> Iterator[tuple[Span, bool]]:
    """Yield this process's batches and whether each counts.

    Processes that hold parts of one model must call it equally often: one that is short of a batch
    computes another that does not count.
    """
    start, stop = processes.share(len(spans))
    yield from ((span, True) for span in spans[start:stop])
    most = -(-len(spans) // processes.world_size)
    if in_step and stop - start < most:
        yield spans[0], False


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The size of a text in three units."""

    tokens: int  # those between documents included
    characters: int  # code points
    bytes: int  # number of UTF-8 bytes

    def bits(self, loss: float) -> dict[str, float]:
        """Return a mean loss of tokens, in nats, as bits for each character and each byte.

        Example:
            >>> Amount(tokens=2, characters=4, bytes=8).bits(math.log(2))
            {'bits_per_character': 0.5, 'bits_per_byte': 0.25}
        """
        bits = loss / math.log(2) * self.tokens
        return {"bits_per_character": bits / self.characters, "bits_per_byte": bits / self.bytes}


def amount(file: TokenFile, tokenizer: Tokenizer) -> Amount:
    """Count the text of a file of tokens; one document is decoded at a time.

    Raises:
        ConfigError: if the file's ids are not the tokenizer's.
    """
    characters = size = 0
    special = {tokenizer.begin, tokenizer.end}
    for number in range(file.header.documents):
        text = tokenizer.decode([i for i in file.document(number).tolist() if i not in special])
        characters += len(text)
        size += len(text.encode())
    return Amount(tokens=len(file), characters=characters, bytes=size)
