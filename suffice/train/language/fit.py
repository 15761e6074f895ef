"""Training a language model: what is refused, what is put back, and the run between."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suffice.errors import ConfigError, ShapeError, StateError
from suffice.layers import Block
from suffice.layers.dropout import Dropout
from suffice.progress import Progress, Silent
from suffice.text import TokenFile
from suffice.train import sharded, training_state
from suffice.train import sharded as shards
from suffice.train.distributed import Processes, current, resolve_device
from suffice.train.language.log import LMRun, Log, Measured
from suffice.train.language.loss import (
    Amount,
    CrossEntropy,
    Objective,
    Source,
    Windows,
    evaluate_lm,
    facts,
    shares,
)
from suffice.train.language.settings import LMState, LMTraining, start
from suffice.train.loop import check_place
from suffice.train.progress import Interrupted, Interrupts, noticing
from suffice.train.settings import derive
from suffice.train.sharded import fill


def accumulate(
    replica: nn.Module,
    source: Source,
    step: int,
    training: LMTraining,
    *,
    processes: Processes,
    dropouts: Sequence[Dropout],
    device: torch.device,
    objective: Objective | None = None,
) -> tuple[Tensor, int]:
    """Add the gradient to the parameters; return this process's sums and how many targets all had.

    The weight of a target must be known before the first micro-batch is computed, so the targets
    are counted first. DDP averages over the processes: hence the factor of their number. A batch
    without any target gives gradients of 0.

    Args:
        replica: what `processes.wrap` made of the model.
        source: of the rows.
        step: whose rows.
        training: the settings.
        processes: that share the batch.
        dropouts: the layers that draw masks for the whole micro-batch.
        device: of the model.
        objective: what the loss is; None = cross-entropy.

    Returns:
        float64 [2], the summed loss and the targets of this process; the targets of all.
    """
    parts = shares(training.batch_size, training.accumulate, processes)
    batches = [source.rows(step, start, stop) for start, stop, _, _ in parts]
    own = sum(batch.asked for batch in batches)
    asked = int(processes.sum(torch.tensor(own)))
    weight = processes.world_size / max(asked, 1)
    total = torch.zeros((), dtype=torch.float64, device=device)
    objective = objective or CrossEntropy()
    for number, (batch, (_, _, first, rows)) in enumerate(zip(batches, parts, strict=True), 1):
        for dropout in dropouts:
            dropout.rows = (first, rows)
        last = number == len(batches)
        with contextlib.nullcontext() if last else processes.apart(replica):
            loss = objective.summed(replica, batch.to(device), dtype=training.dtype)
            (loss * weight).backward()
        total += loss.detach()
    return torch.stack([total, torch.full_like(total, own)]), asked


TOLD_EVERY = 10  # steps between two losses in the log; each waits for the device


@dataclass(kw_only=True)
class Steps:
    """The parts of one training and the order in which they act.

    `given` is the caller's model: the trained one itself, or, where that is sharded, a whole one
    that is filled with the best weights.
    """

    given: nn.Module
    model: nn.Module
    replica: nn.Module
    learned: list[nn.Parameter]
    dropouts: list[Dropout]
    source: Source
    objective: Objective
    validation: TokenFile
    training: LMTraining
    state: LMState
    processes: Processes
    device: torch.device
    checkpoint: Path | None
    save_every: float
    progress: Progress
    interrupts: Interrupts
    log: Log
    amount: Amount | None
    keep: Callable[[Measured], None] | None
    past: float = 0.0  # share of the time that is over
    rate: float = 0.0  # of the last step

    def run(self) -> LMRun:
        """Make the steps that are not done yet; the model has the best weights afterwards."""
        state, training = self.state, self.training
        saved = time.monotonic()
        self.model.train()
        self._tell()
        self._agree(saved)
        while state.step < training.steps and self.past < 1.0:
            self._step()
            self.progress.step(*self._done())
            interrupted, due = self._agree(saved)
            last = self.past == 1.0 or state.step == training.steps
            if last or not state.step % training.evaluate_every:
                self._look()
            if interrupted:
                self._leave()
            if due:
                self._save()
                saved = time.monotonic()
        if not state.history or state.history[-1].step < state.step:
            self._look()  # the time was over already when the run was resumed
        self._save()
        fill(self.given, state.best)
        return LMRun(
            measured=tuple(state.history),
            best_step=state.best_step,
            out_of_time=state.step < training.steps,
        )

    def _agree(self, saved: float) -> tuple[bool, bool]:
        """Return, on every process alike: Ctrl-C, a checkpoint is due; note how much time is over.

        Clocks differ between processes: what any of them says holds for all, and their mean time.
        """
        minutes, world = self.training.max_minutes, self.processes.world_size
        past = 0.0 if minutes is None else self.state.seconds / (60 * minutes)
        due = time.monotonic() - saved >= self.save_every
        own = torch.tensor([self.interrupts.seen, due, past], dtype=torch.float64)
        interrupted, overdue, past = self.processes.sum(own).tolist()
        self.past = min(past / world, 1.0)
        return interrupted > 0, overdue > 0

    def _step(self) -> None:
        """Make one optimiser step."""
        state, training = self.state, self.training
        started = time.perf_counter()
        rate = training.rate(state.step, self.past)
        for group in state.optimiser.param_groups:
            group["lr"] = self.rate = rate
        state.optimiser.zero_grad(set_to_none=True)
        loss, asked = accumulate(
            self.replica,
            self.source,
            state.step,
            training,
            processes=self.processes,
            dropouts=self.dropouts,
            device=self.device,
            objective=self.objective,
        )
        if training.clip is not None:
            nn.utils.clip_grad_norm_(self.learned, training.clip)
        if asked:
            state.optimiser.step()
        state.totals += loss
        state.step += 1
        state.tokens += asked
        state.seconds += time.perf_counter() - started
        if state.step % TOLD_EVERY == 0:
            self._tell_step(loss, rate)

    def _look(self) -> None:
        """Measure the validation loss: a record, the best weights."""
        state, training = self.state, self.training
        loss, asked = self.processes.sum(state.totals.clone()).tolist()
        trained = loss / asked if asked else 0.0
        self._refuse_nonfinite("training", trained)
        found = evaluate_lm(
            self.model,
            self.validation,
            length=training.length,
            batch_size=2 * math.ceil(training.batch_size / training.accumulate),  # no gradients
            batches=training.evaluation_batches,
            dtype=training.dtype,
            separate=training.documents == "separate",
            device=str(self.device),
        )
        self._refuse_nonfinite("validation", found)
        best = state.best_loss
        measured = Measured(
            step=state.step,
            tokens=state.tokens,
            train_loss=trained,
            validation_loss=found,
            learning_rate=self.rate,
            seconds=state.seconds,
        )
        state.history.append(measured)
        state.totals.zero_()
        self.log.write({**asdict(measured), **self._bits(found)})
        self._tell()
        if found < best:
            state.keep_best()
            if self.given is not self.model:
                fill(self.given, state.best)
            if self.keep is not None:
                self.keep(measured)

    def _bits(self, loss: float) -> dict[str, float]:
        return {} if self.amount is None else self.amount.bits(loss)

    def _done(self) -> tuple[int, int]:
        """Return how far the run is, by its steps or by its time, whichever is further."""
        steps, minutes = self.training.steps, self.training.max_minutes
        past = self.past if minutes is None else min(self.state.seconds / (60 * minutes), 1.0)
        return max(self.state.step, round(past * steps)), steps

    def _tell_step(self, sums: Tensor, rate: float) -> None:
        """Log the loss of one step: of all processes' targets."""
        loss, asked = self.processes.sum(sums.clone()).tolist()
        if asked:
            self._refuse_nonfinite("training", loss / asked)
            record = {"step": self.state.step, "loss": loss / asked, "learning_rate": rate}
            self.log.write({**record, "seconds": self.state.seconds})
            self._tell(loss / asked)

    def _tell(self, loss: float | None = None) -> None:
        state = self.state
        due = f"/{self.training.steps:,}" if self.training.max_minutes is None else ""
        words = [f"step {state.step:,}{due}"]
        if loss is not None:
            words.append(f"loss {loss:.3f}")
        if state.history:
            words.append(f"validation {state.history[-1].validation_loss:.4f}")
        if state.seconds:
            words.append(f"{state.tokens / state.seconds:,.0f} tokens/s")
        self.progress.say(", ".join(words))

    def _refuse_nonfinite(self, which: str, loss: float) -> None:
        if math.isfinite(loss):
            return
        there = self.checkpoint is not None and self.checkpoint.exists()
        kept = f" The last checkpoint, {self.checkpoint}, is kept." if there else ""
        raise StateError(
            f"the {which} loss is {loss} after step {self.state.step} with "
            f"learning_rate={self.training.learning_rate}; lower learning_rate, add warmup or "
            f"clip the gradients.{kept}"
        )

    def _save(self) -> None:
        if self.checkpoint is not None:
            totals = self.state.totals.clone()
            self.processes.sum(self.state.totals)
            training_state.write(self.checkpoint, self.state, self.processes)
            self.state.totals.copy_(totals)

    def _leave(self) -> None:
        """Save and leave: Ctrl-C was pressed, and all processes have made the same step."""
        if self.checkpoint is not None and self.processes.any(not self.state.finite()):
            self._refuse_nonfinite("training", math.nan)
        self._save()
        self.processes.barrier()
        raise Interrupted(self.checkpoint, step=self.state.step)


@contextlib.contextmanager
def recomputing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Keep only what enters the blocks of a model, for the time of the context, if it is wanted.

    The random state is put back for the second computation, so dropout drops the same. A block
    that runs without gradients is not touched.
    """
    blocks = [m for m in model.modules() if isinstance(m, Block)] if wanted else []
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def fit_lm(
    model: nn.Module,
    train: TokenFile | Source,
    validation: TokenFile,
    training: LMTraining,
    *,
    seed: int,
    device: str = "cpu",
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    save_every: float = 60.0,
    log: Path | None = None,
    tensorboard: Path | None = None,
    amount: Amount | None = None,
    keep: Callable[[Measured], None] | None = None,
    objective: Objective | None = None,
) -> LMRun:
    """Train a language model; it holds the weights of the lowest validation loss afterwards.

    The loss is the mean over the targets of the global batch: cross-entropy, unless an objective
    is given. Weights are chosen by cross-entropy on the validation text in either case. The rows
    are pure functions of (seed, step); the global random state of torch, behind dropout, is seeded
    from `seed` here. Initialising the model is the caller's. Micro-batches and several processes
    give the result of one within rounding (dropout draws anew for each micro-batch). Where
    `training.shard` cuts the weights between processes, that is done to a copy: the model stays
    where it is, whole, and is filled with the best weights whenever there are better ones.

    Ctrl-C lets the step in progress finish, writes the checkpoint and raises Interrupted; a second
    one interrupts at once. A resumed run ends with the very weights and history (but for seconds)
    of one that was never interrupted.

    Args:
        model: called as model(tokens, valid=..., segments=...) -> logits [B, T, V], with the marks
            that the rows have; moved to the device, its training flags are the same afterwards.
        train: what to learn from.
        validation: what the weights are chosen by.
        training: the settings.
        seed: of the rows and of dropout.
        device: "cpu" or "cuda".
        checkpoint: file for the state of the training, visible to every process; it is replaced
            unless `resume`. Sharded weights lie in a folder beside it, and any number of processes
            goes on from either, sharded or not. None writes nothing.
        resume: go on from the checkpoint.
        progress: told of every step; None is silent. Only the first process uses it.
        save_every: seconds between two checkpoints at least; written after a step, on Ctrl-C, and
            when the training ends.
        log: file for lines of JSON; only the first process writes.
        tensorboard: folder for TensorBoard's events; needs tensorboard.
        amount: of the validation text, for losses in bits.
        keep: called by the first process whenever the model's weights are the best so far.
        objective: what is lowered; None = cross-entropy.

    Raises:
        ConfigError: if the device is absent, resume is given without a checkpoint, nothing in the
            model learns, the rows of a micro-batch do not go round the processes, or the weights
            cannot be sharded.
        ShapeError: if the model's tables hold fewer tokens than the text, or shorter rows.
        CheckpointError: if the checkpoint cannot be written or read, or is of another run.
        StateError: if the loss is no longer finite; the last checkpoint is kept.
        Interrupted: on Ctrl-C.
    """
    check_place(checkpoint, resume=resume)
    processes, place = current(), resolve_device(device)
    source, lowered = _source(train, training, seed), objective or CrossEntropy()
    _refuse(model, validation, training, processes)
    torch.manual_seed(derive("dropout", seed))
    given, model = model, _trained(model, training, processes, place, checkpoint)
    data = {"train": source.facts, "validation": facts(validation)}
    if lowered.facts:  # a checkpoint of cross-entropy says nothing of it
        data["objective"] = dict(lowered.facts)
    state = start(model, training, data=data, seed=seed, device=place)
    if checkpoint is not None and resume:
        training_state.read(checkpoint, state)
        if not processes.is_main:
            state.totals.zero_()  # the file holds the sums of all processes
    main = processes.is_main
    flags = [(module, module.training) for module in model.modules()]
    dropouts = [m for m in model.modules() if isinstance(m, Dropout)]
    lines = Log(log if main else None, tensorboard if main else None, step=state.step)
    try:
        with noticing() as interrupts, recomputing(model, training.checkpointing):
            return Steps(
                given=given,
                model=model,
                replica=processes.wrap(model, place),
                learned=[p for p in model.parameters() if p.requires_grad],
                dropouts=dropouts if processes.world_size > 1 else [],
                source=source,
                objective=lowered,
                validation=validation,
                training=training,
                state=state,
                processes=processes,
                device=place,
                checkpoint=checkpoint,
                save_every=save_every,
                progress=progress if progress is not None and main else Silent(),
                interrupts=interrupts,
                log=lines,
                amount=amount,
                keep=keep if main else None,
            ).run()
    finally:
        lines.close()
        for dropout in dropouts:
            dropout.rows = None
        for module, flag in flags:
            module.training = flag


def _trained(
    model: nn.Module,
    training: LMTraining,
    processes: Processes,
    place: torch.device,
    checkpoint: Path | None,
) -> nn.Module:
    """Return what the optimiser changes: the model, or a copy cut between the processes."""
    if not training.shard or processes.world_size == 1:
        return model.to(place)
    if checkpoint is not None:
        shards.check_torch()
    return sharded.shard(model, processes, place)


def _source(train: TokenFile | Source, training: LMTraining, seed: int) -> Source:
    if not isinstance(train, TokenFile):
        return train
    return Windows(
        train,
        training.batch_size,
        training.length,
        derive("windows", seed),
        separate=training.documents == "separate",
    )


def _refuse(
    model: nn.Module, validation: TokenFile, training: LMTraining, processes: Processes
) -> None:
    config = getattr(model, "config", None)
    known = getattr(config, "vocabulary_size", validation.header.vocabulary_size)
    if validation.header.vocabulary_size > known:
        raise ShapeError(
            f"the text has {validation.header.vocabulary_size:,} tokens and the model {known:,}; "
            "build the model for the tokenizer."
        )
    if training.batch_size // training.accumulate < processes.world_size:
        raise ConfigError(
            f"batch_size={training.batch_size} in accumulate={training.accumulate} micro-batches "
            f"leaves a process of {processes.world_size} without a row; give at least "
            f"{training.accumulate * processes.world_size} rows."
        )
