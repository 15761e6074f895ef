"""The loss of a language model on a text, window after window."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from suffice.text import TokenFile
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.evaluate import evaluating
from suffice.train.language.batch import Batch, window
from suffice.train.language.loss import summed
from suffice.train.sharded import is_sharded, let_go


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
