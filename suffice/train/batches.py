"""The batches of an epoch: which rows, in which order, and whose share each is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.data.dataset import Dataset
from suffice.train.augment import AUGMENTATIONS
from suffice.train.distributed import Processes
from suffice.train.reading import Reading
from suffice.train.seeds import generator
from suffice.train.settings import Training

MOVED_WHOLE = 1 << 30  # bytes of a split that a device holds besides the model


class Batch(NamedTuple):
    """This process's share of a global batch.

    Args:
        reading: what the model reads, prepared for it.
        labels: int64 [B], or [B, T] where tokens are asked.
        rows: (index of the first row in the global batch, rows of the global batch).
        weight: what the share's summed loss is multiplied with before the backward pass: the
            processes over the answers of the global batch; 0 when the share is empty and the one
            row here only keeps the processes in step.
    """

    reading: Reading
    labels: Tensor
    rows: tuple[int, int]
    weight: float


class Batches:
    """The training batches of every epoch, a pure function of (data, batch size, seed, epoch).

    A split of up to `MOVED_WHOLE` bytes moves to the device once; of a larger one each batch does,
    so that a GPU need not hold the pictures. The last batch is smaller when the rows do not divide.
    """

    def __init__(
        self,
        dataset: Dataset,
        training: Training,
        *,
        seed: int,
        processes: Processes,
        device: torch.device,
    ) -> None:
        split = dataset.train
        whole = Reading.of(split)
        nbytes = sum(tensor.nbytes for tensor in (*whole, split.labels) if tensor is not None)
        self._device = device
        stays = device if nbytes <= MOVED_WHOLE else torch.device("cpu")
        self._reading = whole.each(lambda tensor: tensor.to(stays))
        self._labels = split.labels.to(stays)
        self._answers = split.answers.cpu()  # of each row; read by this process, not by the device
        self._prepare = dataset.prepare
        self._augment = AUGMENTATIONS[training.augment] if training.augment else None
        self._size = training.batch_size
        self._seed = seed
        self._processes = processes

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self._labels) // self._size)

    @property
    def answers(self) -> int:
        """How many answers an epoch asks for."""
        return int(self._answers.sum())

    def order(self, epoch: int) -> Tensor:
        """Return the rows of the split, int64 [N], in the order of an epoch."""
        return torch.randperm(len(self._labels), generator=generator("order", self._seed, epoch))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from index `first` on."""
        order = self.order(epoch)
        answers = self._answers[order]
        order = order.to(self._labels.device)
        draws = None
        if self._augment is not None:
            drawn = self._augment.draw(len(order), generator("augment", self._seed, epoch))
            draws = drawn.to(self._device)
        for start in range(first * self._size, len(order), self._size):
            asked = int(answers[start : start + self._size].sum())
            yield self._batch(order, draws, start, self._processes.world_size / asked)

    def _batch(self, order: Tensor, draws: Tensor | None, start: int, weight: float) -> Batch:
        total = min(self._size, len(order) - start)
        low, high = self._processes.share(total)
        if low == high:  # every process must call forward and backward, or DDP waits for it
            low, high, weight = 0, 1, 0.0
        own = slice(start + low, start + high)
        rows = order[own]
        reading = self._reading.each(lambda tensor: self._moved(tensor, rows))
        inputs = reading.inputs
        if self._augment is not None:
            inputs = self._augment.apply(inputs, draws[own])
        reading = reading._replace(inputs=self._prepare(inputs))
        return Batch(reading, self._moved(self._labels, rows), (low, total), weight)

    def _moved(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Return rows of a tensor on the device."""
        return tensor.index_select(0, rows).to(self._device)
