"""The steps of one training of a language model, and what is done between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from suffice.errors import StateError
from suffice.layers.dropout import Dropout
from suffice.text import TokenFile
from suffice.train import moment
from suffice.train.distributed import Processes
from suffice.train.interrupt import Interrupted, Interrupts
from suffice.train.language.amount import Amount
from suffice.train.language.batch import Source
from suffice.train.language.evaluate import evaluate_lm
from suffice.train.language.gradients import accumulate
from suffice.train.language.history import LMRun, Measured
from suffice.train.language.log import Log
from suffice.train.language.loss import Objective
from suffice.train.language.settings import LMTraining
from suffice.train.language.state import LMState
from suffice.train.progress import Progress
from suffice.train.sharded import fill

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
            moment.write(self.checkpoint, self.state, self.processes)
            self.state.totals.copy_(totals)

    def _leave(self) -> None:
        """Save and leave: Ctrl-C was pressed, and all processes have made the same step."""
        if self.checkpoint is not None and self.processes.any(not self.state.finite()):
            self._refuse_nonfinite("training", math.nan)
        self._save()
        self.processes.barrier()
        raise Interrupted(self.checkpoint, step=self.state.step)
