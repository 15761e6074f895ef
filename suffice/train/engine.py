"""The training loop that `fit` and `fit_lm` share.

One optimiser step after another: checkpoints, Ctrl-C, losses that are no longer finite, and the
best weights are handled here, once. A kind of training says which micro-batches a step has, what
their loss is, and when and how to validate.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from suffice.errors import CheckpointError, ConfigError, StateError
from suffice.layers.basic import Dropout
from suffice.train import training_state
from suffice.train.distributed import Processes
from suffice.train.sharded import fill
from suffice.utils.progress import Progress


class Interrupted(KeyboardInterrupt):  # noqa: N818 - the family of KeyboardInterrupt
    """Training was interrupted and its state is safe.

    Args:
        checkpoint: the file a resumed run continues from; None when there is none.
        epoch: epoch in progress, from 1; None where a training counts steps alone.
        step: optimiser steps of that epoch, or of all, that are done.
    """

    def __init__(self, checkpoint: Path | None, *, epoch: int | None = None, step: int) -> None:
        inside = "" if epoch is None else f" in epoch {epoch}"
        where = f"interrupted{inside} after step {step}"
        then = f"resume from {checkpoint}" if checkpoint else "there is no checkpoint"
        super().__init__(f"{where}; {then}.")
        self.checkpoint = checkpoint
        self.epoch = epoch
        self.step = step


class Interrupts:
    """Whether Ctrl-C was pressed; a second press interrupts at once, except under torchrun."""

    pressed: bool = False

    def notice(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's own
        """Remember the first signal; raise KeyboardInterrupt at the second."""
        # torchrun sends the signal more than once and kills processes that take too long
        if self.pressed and not dist.is_torchelastic_launched():
            raise KeyboardInterrupt("interrupted twice; what was not saved is lost.")
        self.pressed = True


@contextlib.contextmanager
def catching_interrupts() -> Iterator[Interrupts]:
    """Note Ctrl-C during the block instead of raising; does nothing outside the main thread."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():  # which gets all signals
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.notice)
    try:
        yield interrupts
    finally:
        # None: a handler that was not installed from Python, which cannot be named again
        after = before if before is not None else signal.SIG_DFL
        # what follows is told, not interrupted
        ends = interrupts.pressed and dist.is_torchelastic_launched()
        signal.signal(signal.SIGINT, signal.SIG_IGN if ends else after)
    if interrupts.pressed:  # it came after the last check; a Ctrl-C is never lost
        raise KeyboardInterrupt("interrupted at the end.")


def check_checkpoint(checkpoint: Path | None, *, resume: bool) -> None:
    """Refuse a checkpoint that cannot be resumed or written: ConfigError or CheckpointError."""
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


class MicroBatch(NamedTuple):
    """This process's share of the rows of one forward and backward pass."""

    data: Any  # what the loss is computed on
    rows: tuple[int, int]  # (index of the first row, rows in all) among those of all processes
    weight: float
    """Factor of the summed loss: the number of processes, as DDP averages over them, over the
    targets of the whole batch; 0 for a row that only keeps an idle process in step."""


@dataclass(kw_only=True)
class TrainingEngine(ABC):
    """A training and its parts; `run` makes the steps that are not done yet."""

    model: nn.Module  # that is trained, on the device
    result: nn.Module  # gets the best weights; not `model` where that is sharded
    training: Any  # the settings
    state: Any  # what a checkpoint holds
    processes: Processes  # that share each batch
    device: torch.device
    checkpoint: Path | None  # None writes nothing
    save_every: float  # seconds between two checkpoints at least
    progress: Progress
    time_used: float = 0.0  # share of the time limit, agreed between the processes
    learning_rate: float = 0.0  # of the last step
    _interrupts: Interrupts = field(default_factory=Interrupts)
    _saved: float = field(default_factory=time.monotonic)

    READ_EVERY: ClassVar[int] = 0
    """Steps between two readings of the loss, each of which waits for the device; 0 = none."""

    # what a kind of training decides

    @abstractmethod
    def finished(self) -> bool:
        """Return whether no step and no validation is left to do."""

    @abstractmethod
    def validation_due(self) -> bool:
        """Return whether a validation comes before the next step."""

    @abstractmethod
    def rate(self) -> float:
        """Return the learning rate of the next step."""

    @abstractmethod
    def micro_batches(self) -> tuple[list[MicroBatch], int]:
        """Return the micro-batches of the next step, and how many targets they all have."""

    @abstractmethod
    def loss(self, replica: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
        """Return the summed loss, and the count that goes with it in `state.totals`."""

    @abstractmethod
    def measure(self, loss: float, count: float) -> Any:
        """Return the record of a validation; its `validation_loss` decides on the best weights."""

    @abstractmethod
    def describe(self) -> str:
        """Return the remark next to the progress bar."""

    @abstractmethod
    def place(self) -> dict[str, Any]:
        """Return where the run is: the arguments of `Interrupted`."""

    @abstractmethod
    def done(self) -> tuple[int, int]:
        """Return how far the run is: (steps done, steps in all)."""

    def elapsed(self) -> float:
        """Return the share of the time limit that this process has used."""
        return 0.0

    def after_reading(self, loss: float) -> None:  # noqa: ARG002 - for kinds that log it
        """Show the mean loss of a step, READ_EVERY steps after the last one."""
        self.progress.say(self.describe())

    @abstractmethod
    def after_validation(self, record: Any, *, is_best: bool) -> None:
        """Take note of a record that was added to the history."""

    # the loop

    def run(self) -> None:
        """Train to the end, or raise Interrupted; `result` has the best weights afterwards."""
        modules = list(self.model.modules())
        flags = [module.training for module in modules]
        dropouts = [module for module in modules if isinstance(module, Dropout)]
        self._dropouts = dropouts if self.processes.world_size > 1 else []
        self._learned = [p for p in self.model.parameters() if p.requires_grad]
        self._replica = self.processes.wrap(self.model, self.device)
        try:
            with catching_interrupts() as self._interrupts:
                self._loop()
        finally:
            for dropout in dropouts:
                dropout.rows = None
            for module, flag in zip(modules, flags, strict=True):
                module.training = flag

    def _loop(self) -> None:
        self.model.train()
        self.progress.say(self.describe())
        self._agree()
        while not self.finished():
            if self.validation_due():
                self._validate()
            else:
                self._step()
                self.progress.step(*self.done())
            interrupted, overdue = self._agree()
            if interrupted:
                self._save()
                self.processes.barrier()
                raise Interrupted(self.checkpoint, **self.place())
            if overdue:
                self._save()
        self._save()
        fill(self.result, self.state.best)

    def _agree(self) -> tuple[bool, bool]:
        """Return, on every process alike: was Ctrl-C pressed, is a checkpoint due on any clock."""
        overdue = time.monotonic() - self._saved >= self.save_every
        signs = [self._interrupts.pressed, overdue, self.elapsed()]
        agreed = self.processes.sum(torch.tensor(signs, dtype=torch.float64)).tolist()
        self.time_used = min(agreed[2] / self.processes.world_size, 1.0)
        return agreed[0] > 0, agreed[1] > 0

    def _step(self) -> None:
        state, started, spent = self.state, time.perf_counter(), time.process_time()
        self.learning_rate = self.rate()
        for group in state.optimiser.param_groups:
            group["lr"] = self.learning_rate
        state.optimiser.zero_grad(set_to_none=True)
        micro_batches, targets = self.micro_batches()
        sums = self.accumulate(micro_batches)
        if self.training.clip is not None:
            nn.utils.clip_grad_norm_(self._learned, self.training.clip)
        if targets:
            state.optimiser.step()
        state.totals += sums
        state.advance(targets)
        reads = self.READ_EVERY > 0 and state.step % self.READ_EVERY == 0
        if reads or self.validation_due():
            sums = self.processes.sum(sums)
            loss = sums[0].item()  # waits for the device, so that the clock is read after the work
        state.seconds += time.perf_counter() - started
        state.cpu_seconds += time.process_time() - spent
        if reads and targets:
            self.refuse_nonfinite("training", loss / targets)
            self.after_reading(loss / targets)

    def accumulate(self, micro_batches: list[MicroBatch]) -> Tensor:
        """Add the gradients to the parameters; return the sums of loss and count, float64 [2]."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number, (data, rows, weight) in enumerate(micro_batches, 1):
            for dropout in self._dropouts:
                dropout.rows = rows
            is_last = number == len(micro_batches)
            with contextlib.nullcontext() if is_last else self.processes.no_sync(self._replica):
                loss, count = self.loss(self._replica, data)
                (loss * weight).backward()
            if weight:
                sums += torch.stack([loss.detach().double(), count.detach().double()])
        return sums

    def _validate(self) -> None:
        state = self.state
        record = self.measure(*self.processes.sum(state.totals.clone()).tolist())
        is_best = record.validation_loss < state.best_loss
        state.history.append(record)
        state.totals.zero_()
        if is_best:
            state.keep_best()
        self.after_validation(record, is_best=is_best)
        self.progress.say(self.describe())

    def refuse_nonfinite(self, which: str, loss: float) -> None:
        """Raise StateError if a loss is NaN or infinite."""
        if math.isfinite(loss):
            return
        epoch, step = self.place().get("epoch"), self.state.step
        where = f"after step {step}" if epoch is None else f"in epoch {epoch}"
        exists = self.checkpoint is not None and self.checkpoint.exists()
        advice = f" The last checkpoint, {self.checkpoint}, is kept." if exists else ""
        raise StateError(
            f"the {which} loss is {loss} {where} with learning_rate={self.training.learning_rate}; "
            f"lower learning_rate, add warmup or clip the gradients.{advice}"
        )

    def _save(self) -> None:
        """Write the checkpoint, with the sums of all processes; never one that is not finite."""
        if self.checkpoint is None:
            return
        if self.processes.any(not self.state.finite()):
            self.refuse_nonfinite("training", math.nan)
        totals = self.state.totals.clone()
        self.processes.sum(self.state.totals)
        training_state.write(self.checkpoint, self.state, self.processes)
        self.state.totals.copy_(totals)
        self._saved = time.monotonic()
