"""One training, from the first step to the best weights."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from suffice.data.dataset import Dataset
from suffice.errors import CheckpointError, ConfigError, DataError, StateError
from suffice.layers.dropout import Dropout
from suffice.progress import Progress, Silent
from suffice.train import training_state
from suffice.train.augment import AUGMENTATIONS
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.evaluate import Reading, aligned, evaluate, losses
from suffice.train.optimiser import share
from suffice.train.progress import Epoch, Interrupted, Interrupts, Run, noticing
from suffice.train.settings import Training, derive, generator


def check_place(checkpoint: Path | None, *, resume: bool) -> None:
    """Refuse a checkpoint that cannot be resumed or written.

    Raises:
        ConfigError: if resume has no checkpoint.
        CheckpointError: if the checkpoint is not there to resume, or cannot be written.
    """
    if checkpoint is None:
        if resume:
            raise ConfigError("resume=True without a checkpoint; give the file to resume from.")
        return
    if resume and not checkpoint.exists():
        raise CheckpointError(
            f"{checkpoint} does not exist, so there is nothing to resume; run without resume."
        )
    if not os.access(checkpoint.absolute().parent, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"the folder of {checkpoint} does not exist or cannot be written; make it, or give "
            "another."
        )


def refuse(dataset: Dataset, training: Training, *, checkpoint: Path | None, resume: bool) -> None:
    """Raise what is wrong with a training that has not begun.

    Raises:
        DataError: if the training or the validation split has no rows.
        ConfigError: if the augmentation does not fit the data, or resume has no checkpoint.
        CheckpointError: if the checkpoint is not there to resume, or cannot be written.
    """
    for name, split in (("training", dataset.train), ("validation", dataset.validation)):
        if len(split) == 0:
            raise DataError(f"the {name} split of {dataset.name} has no rows; give at least one.")
    if training.augment is not None and dataset.train.inputs.dim() != 4:
        raise ConfigError(
            f"augment={training.augment!r} is for images, {dataset.name} has tokens; give None."
        )
    check_place(checkpoint, resume=resume)


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


def fit(
    model: nn.Module,
    dataset: Dataset,
    training: Training,
    *,
    seed: int,
    device: str = "cpu",
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    save_every: float = 30.0,
) -> Run:
    """Train a model; it holds the weights of the lowest validation loss afterwards.

    The loss is the mean cross-entropy over the answers of the global batch: one for each row, or
    those of the tokens that are asked. The order of the rows and their
    augmentation are pure functions of (seed, epoch), whatever the model; the global random state
    of torch, behind dropout, is seeded from `seed` here. Initialising the model is the caller's.
    Several processes (see `processes`) share each batch and give one process's result within
    rounding.

    Ctrl-C lets the step in progress finish, writes the checkpoint and raises Interrupted; a second
    one interrupts at once. A resumed run ends with the very weights and history (but for seconds)
    of one that was never interrupted.

    Args:
        model: called as model(inputs, valid=valid_or_None) -> logits [B, num_classes], or
            [B, T, num_classes] where tokens are asked; where rows have a source, as
            model(source, inputs, source_valid, valid). Moved to the device, its training flags
            are the same afterwards.
        dataset: trained on `train`, judged by `validation`; `test` is not touched.
        training: the settings.
        seed: of the order, the augmentation and dropout.
        device: "cpu" or "cuda".
        checkpoint: file for the state of the training, visible to every process; it is replaced
            unless `resume`. None writes nothing.
        resume: go on from the checkpoint.
        progress: told of every step and epoch; None is silent. Only the first process uses it.
        save_every: seconds between two checkpoints at least; written at the end of an epoch, on
            Ctrl-C, and when the training ends.

    Raises:
        ConfigError: if the device is absent, the augmentation does not fit the data, resume is
            given without a checkpoint, or nothing in the model learns.
        DataError: if a split has no rows.
        ShapeError: if the model answers elsewhere than the labels ask.
        CheckpointError: if the checkpoint cannot be written or read, or is of another run.
        StateError: if the loss is no longer finite; the last checkpoint is kept.
        Interrupted: on Ctrl-C.
    """
    refuse(dataset, training, checkpoint=checkpoint, resume=resume)
    processes, place = current(), resolve_device(device)
    torch.manual_seed(derive("dropout", seed))
    model.to(place)
    batches = Batches(dataset, training, seed=seed, processes=processes, device=place)
    state = training_state.start(model, dataset, training, seed=seed, device=place)
    if checkpoint is not None and resume:
        training_state.read(checkpoint, state)
        if not processes.is_main:
            state.totals.zero_()  # the file holds the sums of all processes
    replica = processes.wrap(model, place)
    shared = processes.world_size > 1
    flags = [(module, module.training) for module in model.modules()]
    dropouts = [m for m in model.modules() if isinstance(m, Dropout)] if shared else []
    shown = progress if progress is not None and processes.is_main else Silent()
    try:
        with noticing() as interrupts:
            return _Fit(
                model=model,
                replica=replica,
                learned=[p for p in model.parameters() if p.requires_grad],
                dropouts=dropouts,
                dataset=dataset,
                training=training,
                batches=batches,
                state=state,
                processes=processes,
                device=place,
                checkpoint=checkpoint,
                save_every=save_every,
                progress=shown,
                interrupts=interrupts,
            ).run()
    finally:
        for dropout in dropouts:
            dropout.rows = None
        for module, flag in flags:
            module.training = flag


@dataclass(kw_only=True)
class _Fit:
    """The parts of one training and the order in which they act."""

    model: nn.Module
    replica: nn.Module
    learned: list[nn.Parameter]
    dropouts: list[Dropout]
    dataset: Dataset
    training: Training
    batches: Batches
    state: training_state.State
    processes: Processes
    device: torch.device
    checkpoint: Path | None
    save_every: float
    progress: Progress
    interrupts: Interrupts

    def run(self) -> Run:
        state = self.state
        saved = time.monotonic()
        self._tell()
        while not self._finished():
            self._learn()
            self._judge()
            self._tell()
            if self._finished() or time.monotonic() - saved >= self.save_every:
                self._save()
                saved = time.monotonic()
            self._heed()
        state.model.load_state_dict(state.best)
        return Run(
            epochs=tuple(state.history),
            best_epoch=state.best_epoch,
            stopped_early=state.stopped_early,
        )

    def _finished(self) -> bool:
        return self.state.stopped_early or self.state.epoch > self.training.epochs

    def _learn(self) -> None:
        """Make the steps of the epoch that are not done yet."""
        state, steps = self.state, len(self.batches)
        total, past = self.training.epochs * steps, (state.epoch - 1) * steps
        before, started = state.seconds, time.perf_counter()
        self.model.train()
        for batch in self.batches.epoch(state.epoch, first=state.step):
            self._step(batch, past + state.step, total)
            state.step += 1
            state.seconds = before + time.perf_counter() - started
            self.progress.step(past + state.step, total)
            self._heed()
        state.totals.sum().item()  # wait for a GPU before the clock is read
        state.seconds = before + time.perf_counter() - started

    def _step(self, batch: Batch, index: int, total: int) -> None:
        settings, adamw = self.training, self.state.optimiser
        scale = share(index, total=total, warmup=settings.warmup, schedule=settings.schedule)
        for group in adamw.param_groups:
            group["lr"] = settings.learning_rate * scale
        for dropout in self.dropouts:
            dropout.rows = batch.rows
        logits, labels = aligned(batch.reading.answered(self.replica), batch.labels)
        loss = losses(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)
        adamw.zero_grad(set_to_none=True)
        (loss * batch.weight).backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(self.learned, settings.clip)
        adamw.step()
        if batch.weight:
            self._count(loss.detach(), logits.detach(), labels)

    def _count(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        hits = (logits.argmax(dim=1) == labels).sum()
        self.state.totals += torch.stack([loss.double(), hits.double()])

    def _judge(self) -> None:
        """Close the epoch: its record, the best weights, whether to stop."""
        state, epoch = self.state, self.state.epoch
        sums = self.processes.sum(state.totals.clone())
        loss, accuracy = (sums / self.batches.answers).tolist()
        self._refuse_nonfinite("training", loss)
        score = evaluate(
            self.model,
            self.dataset,
            self.dataset.validation,
            batch_size=2 * self.training.batch_size,  # no gradients: fits where a step did
            device=str(self.device),
        )
        self._refuse_nonfinite("validation", score.loss)
        best = state.history[state.best_epoch - 1].validation_loss if state.history else math.inf
        state.history.append(
            Epoch(
                epoch=epoch,
                train_loss=loss,
                train_accuracy=accuracy,
                validation_loss=score.loss,
                validation_accuracy=score.accuracy,
                seconds=state.seconds,
            )
        )
        if score.loss < best:
            state.keep_best()
        patience = self.training.patience
        tired = patience is not None and epoch - state.best_epoch >= patience
        enough = self.training.enough is not None and score.accuracy >= self.training.enough
        state.stopped_early = (tired or enough) and epoch < self.training.epochs
        state.next_epoch()

    def _refuse_nonfinite(self, which: str, loss: float) -> None:
        if math.isfinite(loss):
            return
        there = self.checkpoint is not None and self.checkpoint.exists()
        kept = f" The last checkpoint, {self.checkpoint}, is kept." if there else ""
        raise StateError(
            f"the {which} loss is {loss} in epoch {self.state.epoch} with "
            f"learning_rate={self.training.learning_rate}; lower learning_rate, add warmup or "
            f"clip the gradients.{kept}"
        )

    def _tell(self) -> None:
        state, epochs = self.state, self.training.epochs
        text = f"epoch {min(state.epoch, epochs)}/{epochs}"
        if state.history:
            last = state.history[-1]
            text += f" loss {last.validation_loss:.4f} accuracy {last.validation_accuracy:.1%}"
        self.progress.say(text)

    def _save(self) -> None:
        if self.checkpoint is not None and self.processes.is_main:
            training_state.write(self.checkpoint, self.state)

    def _heed(self) -> None:
        """Save and leave if Ctrl-C was pressed, on all processes after the same step."""
        if not self.processes.any(self.interrupts.seen):
            return
        state = self.state
        self.processes.sum(state.totals)
        if self.checkpoint is not None and not state.finite():
            self._refuse_nonfinite("training", math.nan)
        self._save()
        self.processes.barrier()
        raise Interrupted(self.checkpoint, epoch=state.epoch, step=state.step)
