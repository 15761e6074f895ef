"""`fit`: training by epochs over the rows of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from suffice.data.dataset import Dataset
from suffice.errors import ConfigError, DataError
from suffice.train import training_state
from suffice.train.augment import AUGMENTATIONS
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.engine import MicroBatch, TrainingEngine, check_checkpoint
from suffice.train.optimiser import schedule_factor
from suffice.train.scoring import ModelInputs, cross_entropy, evaluate, flatten_answers
from suffice.train.settings import Training, autocast, derive, generator
from suffice.train.training_state import TrainingState
from suffice.utils.progress import Progress, Silent


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the training split."""

    epoch: int  # number of the epoch, from 1
    train_loss: float  # mean loss of the labels as they were trained on, label smoothing included
    train_accuracy: float  # share of those labels that had the largest logit, 0 to 1
    validation_loss: float  # mean cross-entropy over the validation labels after the epoch
    validation_accuracy: float  # share of the validation labels that had the largest logit, 0 to 1
    seconds: float  # duration of the training part alone
    # processor time of it, of all threads and processes; unlike `seconds` it stands still while the
    # training is paused. None on a GPU.
    cpu_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A finished training."""

    epochs: tuple[Epoch, ...]  # the record of each epoch
    best_epoch: int  # number, from 1, of the epoch with the lowest validation loss
    stopped_early: bool  # whether `patience` or `enough` ended the run before its last epoch


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
) -> TrainingRun:
    """Train a model; it holds the weights of the lowest validation loss afterwards.

    The loss is the mean cross-entropy over the labels of the global batch, one for each row or one
    for each token. The order of the rows and their augmentation are pure functions of (seed,
    epoch), whatever the model; the global random state of torch, used by dropout, is seeded from
    `seed` here. Initialising the model is left to the caller. Several processes (see `processes`)
    share each batch and give one process's result within rounding.

    Ctrl-C lets the step in progress finish, writes the checkpoint and raises Interrupted; a second
    one interrupts at once. A resumed run ends with the very weights and history (but for seconds)
    of one that was never interrupted.

    Args:
        model: module called as model(inputs, valid=valid_or_None) -> logits [B, num_classes], or
            [B, T, num_classes] where each token has a label; where rows have a source, as
            model(source, inputs, source_valid, valid). Moved to the device; its training flags
            are the same afterwards.
        dataset: trained on `train`, validated on `validation`; `test` is not touched.
        training: the settings.
        seed: seed of the order, the augmentation and dropout.
        device: "cpu" or "cuda".
        checkpoint: file for the state of the training, visible to every process; it is replaced
            unless `resume`. None writes nothing.
        resume: go on from the checkpoint.
        progress: display of every step and epoch; None is silent. Only the first process uses it.
        save_every: seconds between two checkpoints at least; one is written after a step, on
            Ctrl-C, and when the training ends.

    Raises:
        ConfigError: if the device is absent, the augmentation does not fit the data, resume is
            given without a checkpoint, or nothing in the model learns.
        DataError: if a split has no rows.
        ShapeError: if the logits are not one for each label.
        CheckpointError: if the checkpoint cannot be written or read, or is of another run.
        StateError: if the loss is no longer finite; the last checkpoint is kept.
        Interrupted: on Ctrl-C.
    """
    _check(dataset, training)
    check_checkpoint(checkpoint, resume=resume)
    processes, place = current(), resolve_device(device)
    torch.manual_seed(derive("dropout", seed))
    model.to(place)
    batches = Batches(
        dataset,
        training,
        seed=seed,
        processes=processes,
        device=place,
        by_length=getattr(model, "leaves_padding_out", False),
    )
    sizes = {"train": len(dataset.train), "validation": len(dataset.validation)}
    data = {"name": dataset.name, **sizes}
    state = EpochState.begin(model, training, data=data, seed=seed, device=place)
    if checkpoint is not None and resume:
        training_state.read(checkpoint, state, processes)
    _Epochs(
        model=model,
        result=model,
        dataset=dataset,
        training=training,
        batches=batches,
        state=state,
        processes=processes,
        device=place,
        checkpoint=checkpoint,
        save_every=save_every,
        progress=progress if progress is not None and processes.is_main else Silent(),
    ).run()
    return TrainingRun(
        epochs=tuple(state.history),
        best_epoch=state.best_epoch,
        stopped_early=state.stopped_early,
    )


def _check(dataset: Dataset, training: Training) -> None:
    for name, split in (("training", dataset.train), ("validation", dataset.validation)):
        if len(split) == 0:
            raise DataError(f"the {name} split of {dataset.name} has no rows; give at least one.")
    if training.augment is not None and dataset.train.inputs.dim() != 4:
        raise ConfigError(
            f"augment={training.augment!r} is for images, {dataset.name} has tokens; give None."
        )


@dataclass(kw_only=True)
class EpochState(TrainingState):
    """A training by epochs: step, seconds and totals (loss, hits) are those of the epoch so far."""

    CONTENT: ClassVar[str] = "training"
    RECORD: ClassVar[type] = Epoch

    epoch: int = 1  # in progress; one past the last when all are done
    best_epoch: int = 0  # whose weights `best` holds; 0 before the first
    stopped_early: bool = False  # by `patience` or `enough`

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        super().keep_best()
        self.best_epoch = self.epoch

    @classmethod
    def consistent(cls, history: Sequence[Epoch], counters: Mapping[str, Any]) -> bool:
        """Return whether there is a record of each epoch that is done, and the best is one."""
        count = len(history)
        numbered = [record.epoch for record in history] == list(range(1, count + 1))
        best_exists = bool(history) <= counters["best_epoch"] <= count
        return numbered and best_exists and counters["step"] >= 0 and counters["epoch"] == count + 1


MAX_DEVICE_BYTES = 1 << 30  # bytes of a split that stays on the device with the model
SORTED_TOGETHER = 32  # batches whose rows are sorted by their length before they are dealt out


class LabelledInputs(NamedTuple):
    """Rows on the device, ready for the model, and their labels: int64 [B], or [B, T]."""

    inputs: ModelInputs
    labels: Tensor


class Batches:
    """The training batches of every epoch, a pure function of (data, batch size, seed, epoch).

    Up to `MAX_DEVICE_BYTES` move to the device once. With `by_length`, for a model to which padding
    makes no difference, texts of similar length share a batch; the batches come in random order.
    """

    def __init__(
        self,
        dataset: Dataset,
        training: Training,
        *,
        seed: int,
        processes: Processes,
        device: torch.device,
        by_length: bool = False,
    ) -> None:
        split = dataset.train
        self._real: Tensor | None = None  # bool [N, T], read by this process
        if by_length and split.valid is not None and split.labels.dim() == 1:
            self._real = split.valid.cpu()
        inputs = ModelInputs.of(split)
        nbytes = sum(tensor.nbytes for tensor in (*inputs, split.labels) if tensor is not None)
        home = device if nbytes <= MAX_DEVICE_BYTES else torch.device("cpu")
        self._inputs = inputs.map(lambda tensor: tensor.to(home))
        self._labels = split.labels.to(home)
        self._answers = split.answers.cpu()  # of each row; read by this process, not by the device
        self._augment = AUGMENTATIONS[training.augment] if training.augment else None
        self._prepare, self._size = dataset.prepare, training.batch_size
        self._seed, self._processes, self._device = seed, processes, device

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    @property
    def answers(self) -> int:
        """Labels of an epoch, not counting ignored ones."""
        return int(self._answers.sum())

    def order(self, epoch: int) -> Tensor:
        """Return the rows of the split, int64 [N], in the order of an epoch."""
        order = torch.randperm(len(self._labels), generator=generator("order", self._seed, epoch))
        if self._real is None:
            return order
        lengths, whole = self._real.sum(dim=1), len(order) // self._size * self._size
        together = order[:whole].split(SORTED_TOGETHER * self._size)
        rows = torch.cat([some[lengths[some].argsort(stable=True)] for some in together])
        batches = rows.view(-1, self._size)
        draw = torch.randperm(len(batches), generator=generator("batches", self._seed, epoch))
        return torch.cat((batches[draw].flatten(), order[whole:]))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[MicroBatch]:
        """Yield this process's share of each batch of an epoch, from index `first` on."""
        order = self.order(epoch)
        answers = self._answers[order]
        order = order.to(self._labels.device)
        draws = None
        if self._augment is not None:
            drawn = self._augment.draw(len(order), generator("augment", self._seed, epoch))
            draws = drawn.to(self._device)
        for start in range(first * self._size, len(order), self._size):
            count = int(answers[start : start + self._size].sum())
            yield self._share(order, draws, start, self._processes.world_size / count)

    def _share(self, order: Tensor, draws: Tensor | None, start: int, weight: float) -> MicroBatch:
        total = min(self._size, len(order) - start)
        low, high = self._processes.share(total)
        if low == high:  # every process must call forward and backward, or DDP waits for it
            low, high, weight = 0, 1, 0.0
        share = slice(start + low, start + high)
        rows = order[share]
        inputs = self._inputs.map(lambda tensor: self._take(tensor, rows))
        if self._real is not None:  # every process cuts the batch where its longest text ends
            real = self._real[order[start : start + total].cpu()].any(dim=0).nonzero()
            columns = slice(int(real.min()), int(real.max()) + 1) if len(real) else slice(1)
            inputs = ModelInputs(inputs.inputs[:, columns], inputs.valid[:, columns])
        images = inputs.inputs
        if self._augment is not None:
            images = self._augment.apply(images, draws[share])
        inputs = inputs._replace(inputs=self._prepare(images))
        data = LabelledInputs(inputs, self._take(self._labels, rows))
        return MicroBatch(data, (low, total), weight)

    def _take(self, tensor: Tensor, rows: Tensor) -> Tensor:
        return tensor.index_select(0, rows).to(self._device)


@dataclass(kw_only=True)
class _Epochs(TrainingEngine):
    READ_EVERY: ClassVar[int] = 16
    dataset: Dataset
    training: Training
    batches: Batches
    state: EpochState
    _epoch: Iterator[MicroBatch] | None = None
    _loss: float | None = None  # mean of the latest step that was read
    _answers: float = 1.0  # labels of the present step, on all processes

    def finished(self) -> bool:
        return self.state.stopped_early or self.state.epoch > self.training.epochs

    def validation_due(self) -> bool:
        return self.state.step == len(self.batches)

    def done(self) -> tuple[int, int]:
        steps = len(self.batches)
        return (self.state.epoch - 1) * steps + self.state.step, self.training.epochs * steps

    def rate(self) -> float:
        settings, (step, total) = self.training, self.done()
        scale = schedule_factor(
            step, total=total, warmup=settings.warmup, schedule=settings.schedule
        )
        return settings.learning_rate * scale

    def micro_batches(self) -> tuple[list[MicroBatch], int]:
        if self._epoch is None:
            self._epoch = self.batches.epoch(self.state.epoch, first=self.state.step)
        batch = next(self._epoch)
        if batch.weight:
            self._answers = self.processes.world_size / batch.weight
        return [batch], 1  # no row is without a label

    def loss(self, replica: nn.Module, data: LabelledInputs) -> tuple[Tensor, Tensor]:
        with autocast(self.device, self.training.dtype):
            answers = data.inputs.logits(replica)
        logits, labels = flatten_answers(answers, data.labels)
        smoothing = self.training.label_smoothing
        loss = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        return loss, (logits.detach().argmax(dim=1) == labels).sum()

    def measure(self, loss: float, count: float) -> Epoch:
        train_loss = loss / self.batches.answers
        self.refuse_nonfinite("training", train_loss)
        score = evaluate(
            self.model,
            self.dataset,
            self.dataset.validation,
            batch_size=2 * self.training.batch_size,  # no gradients: fits where a step did
            device=str(self.device),
        )
        self.refuse_nonfinite("validation", score.loss)
        spent = torch.tensor([self.state.cpu_seconds], dtype=torch.float64)
        return Epoch(
            epoch=self.state.epoch,
            train_loss=train_loss,
            train_accuracy=count / self.batches.answers,
            validation_loss=score.loss,
            validation_accuracy=score.accuracy,
            seconds=self.state.seconds,
            cpu_seconds=self.processes.sum(spent).item() if self.device.type == "cpu" else None,
        )

    def after_validation(self, record: Epoch, *, is_best: bool) -> None:  # noqa: ARG002
        state, patience, enough = self.state, self.training.patience, self.training.enough
        out_of_patience = patience is not None and state.epoch - state.best_epoch >= patience
        good_enough = enough is not None and record.validation_accuracy >= enough
        is_last = state.epoch == self.training.epochs
        state.stopped_early = (out_of_patience or good_enough) and not is_last
        state.epoch += 1
        state.step, state.seconds, state.cpu_seconds, self._epoch = 0, 0.0, 0.0, None

    def after_reading(self, loss: float) -> None:
        self._loss = loss / self._answers
        super().after_reading(loss)

    def describe(self) -> str:
        state, epochs = self.state, self.training.epochs
        text = f"epoch {min(state.epoch, epochs)}/{epochs}"
        if self._loss is not None:
            text += f" training loss {self._loss:.3f}"
        if state.history:
            last = state.history[-1]
            text += (
                f", validation loss {last.validation_loss:.3f} "
                f"accuracy {last.validation_accuracy:.1%}"
            )
        return text

    def place(self) -> dict[str, Any]:
        return {"epoch": self.state.epoch, "step": self.state.step}
