"""Training and evaluating language models, by steps over windows of tokens; the log of a training.

Losses are sums over the targets, in fp32 whatever dtype the products are in. A training minimises
an `Objective`; the weights are always chosen by cross-entropy.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suffice.data.dataset import IGNORE_INDEX
from suffice.errors import CheckpointError, ConfigError, ShapeError, installed_for
from suffice.layers import Block
from suffice.text import TokenFile, Tokenizer
from suffice.train import sharded, training_state
from suffice.train.distributed import Processes, current, is_sharded, resolve_device
from suffice.train.engine import MicroBatch, TrainingEngine, check_checkpoint
from suffice.train.scoring import cross_entropy, evaluating, flatten_answers
from suffice.train.settings import LMTraining, autocast, derive
from suffice.train.sharded import release_weights
from suffice.train.training_state import TrainingState
from suffice.utils.files import replacing
from suffice.utils.progress import Progress, Silent

__all__ = [
    "Amount",
    "Batch",
    "CrossEntropy",
    "LMRun",
    "LMTraining",
    "Measured",
    "Objective",
    "ObjectiveSource",
    "Windows",
    "amount",
    "evaluate_lm",
    "fit_lm",
]


class Batch(NamedTuple):
    """Rows of tokens and what follows them."""

    tokens: Tensor  # int64 [B, T], read by the model
    targets: Tensor  # int64 [B, T], the token after each; IGNORE_INDEX: none
    valid: Tensor | None = None  # bool [B, T], True = a real token; None: all
    segments: Tensor | None = None  # int64 [B, T], runs of equal numbers are documents; None: one

    @property
    def num_targets(self) -> int:
        return int((self.targets != IGNORE_INDEX).sum())

    def to(self, device: torch.device) -> Batch:
        return Batch._make(None if t is None else t.to(device) for t in self)


class ObjectiveSource(Protocol):
    """A source of rows; `facts`, JSON, identify it in a checkpoint."""

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
    """The loss that a training minimises; `facts`, JSON, identify it, empty for cross-entropy."""

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

    Windows overlap by one token, so each token but the first is predicted once. `batches` are
    spread evenly over the text; None reads all. The model moves to the device.
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

    Processes that hold parts of one model call it equally often; one that is short of a batch
    repeats one.
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
    """Count the text of a file of tokens; one document is decoded at a time."""
    characters = size = 0
    special = {tokenizer.begin, tokenizer.end}
    for number in range(file.header.documents):
        text = tokenizer.decode([i for i in file.document(number).tolist() if i not in special])
        characters += len(text)
        size += len(text.encode())
    return Amount(tokens=len(file), characters=characters, bytes=size)


@dataclass(frozen=True, kw_only=True)
class Measured:
    step: int  # optimiser steps that were done
    tokens: int  # targets that were learned from by then
    train_loss: float  # mean over the targets since the last validation, as trained on; nats
    validation_loss: float  # mean over the validation targets; nats
    learning_rate: float  # learning rate of the last step
    seconds: float  # seconds of training so far, without validation


@dataclass(frozen=True, kw_only=True)
class LMRun:
    measured: tuple[Measured, ...]  # every validation
    best_step: int  # steps after which the validation loss was lowest; the model has these weights
    out_of_time: bool  # whether `max_minutes` ended the run before its last step

    @property
    def best(self) -> Measured:
        return next(record for record in self.measured if record.step == self.best_step)


def fit_lm(
    model: nn.Module,
    train: TokenFile | ObjectiveSource,
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

    The loss is the mean over the targets of the global batch: cross-entropy, unless an `objective`
    is given. Weights are chosen by cross-entropy on the validation text in either case. The rows
    are pure functions of (seed, step); the global random state of torch, used by dropout, is seeded
    from `seed` here. Initialising the model is the caller's. Micro-batches and several processes
    give the result of one within rounding (dropout draws again for each micro-batch). With
    `training.shard` a copy is cut between processes, and the model gets the best weights, whole.

    Ctrl-C lets the step in progress finish, writes the checkpoint and raises Interrupted; a second
    one interrupts at once. A resumed run ends with the very weights and history (but for seconds)
    of one that was never interrupted. Arguments and errors that are not listed are those of `fit`.

    `checkpoint` is a file that every process sees, replaced unless `resume`; sharded weights are in
    a folder next to it, and any number of processes resumes either. The first process writes `log`
    (JSON lines) and `tensorboard`, and calls `keep` whenever the weights are the best so far.
    """
    check_checkpoint(checkpoint, resume=resume)
    processes, place = current(), resolve_device(device)
    is_main = processes.is_main
    source, objective = train, objective or CrossEntropy()
    if isinstance(source, TokenFile):
        size, length, separate = training.batch_size, training.length, training.separate
        source = Windows(source, size, length, derive("windows", seed), separate=separate)
    _check(model, validation, training, processes)
    torch.manual_seed(derive("dropout", seed))
    trained = _place_model(model, training, processes, place, checkpoint)
    data = {"train": source.facts, "validation": facts_of(validation)}
    if objective.facts:  # a checkpoint of cross-entropy does not name it
        data["objective"] = dict(objective.facts)
    state = StepState.begin(trained, training, data=data, seed=seed, device=place)
    if checkpoint is not None and resume:
        training_state.read(checkpoint, state, processes)
    paths = (log, tensorboard) if is_main else (None, None)
    lines = Log(*paths, step=state.step)
    engine = _Steps(
        model=trained,
        result=model,
        source=source,
        objective=objective,
        validation=validation,
        training=training,
        state=state,
        processes=processes,
        device=place,
        checkpoint=checkpoint,
        save_every=save_every,
        progress=progress if progress is not None and is_main else Silent(),
        log=lines,
        amount=amount,
        keep=keep if is_main else None,
    )
    with contextlib.closing(lines), gradient_checkpointing(trained, training.checkpointing):
        engine.run()
    return LMRun(
        measured=tuple(state.history),
        best_step=state.best_step,
        out_of_time=state.step < training.steps,
    )


def _check(
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


def _place_model(
    model: nn.Module,
    training: LMTraining,
    processes: Processes,
    place: torch.device,
    checkpoint: Path | None,
) -> nn.Module:
    if not training.shard or processes.world_size == 1:
        return model.to(place)
    if checkpoint is not None:
        sharded.check_torch()
    return sharded.shard(model, processes, place)


@dataclass(kw_only=True)
class StepState(TrainingState):
    """A training by steps; its totals are loss and targets since the last validation."""

    CONTENT: ClassVar[str] = "training of a language model"
    RECORD: ClassVar[type] = Measured
    RESUMED_FREELY: ClassVar[tuple[str, ...]] = ("max_minutes", "shard")

    tokens: int = 0  # targets that were learned from
    best_step: int = 0  # after which the weights were `best`; 0 before the first validation

    def keep_best(self) -> None:
        super().keep_best()
        self.best_step = self.step

    def advance(self, targets: int) -> None:
        """Count a step that learned from `targets` targets."""
        super().advance(targets)
        self.tokens += targets

    @classmethod
    def consistent(cls, history: Sequence[Measured], counters: Mapping[str, Any]) -> bool:
        """Return whether validations were made at rising steps, up to the present one."""
        steps = [record.step for record in history]
        rising = all(a < b for a, b in pairwise([0, *steps, counters["step"] + 1]))
        return rising and counters["best_step"] in (steps or [0]) and counters["tokens"] >= 0


@dataclass(kw_only=True)
class _Steps(TrainingEngine):
    source: ObjectiveSource
    objective: Objective
    validation: TokenFile
    training: LMTraining
    state: StepState
    log: Log
    amount: Amount | None
    keep: Callable[[Measured], None] | None
    _step_loss: float | None = None  # of the last step that was logged

    READ_EVERY: ClassVar[int] = 10

    def finished(self) -> bool:
        return self._out_of_steps() and not self.validation_due()

    def _out_of_steps(self) -> bool:
        return self.time_used == 1.0 or self.state.step >= self.training.steps

    def validation_due(self) -> bool:
        step, history = self.state.step, self.state.history
        if step == (history[-1].step if history else 0):
            return False
        return self._out_of_steps() or step % self.training.evaluate_every == 0

    def elapsed(self) -> float:
        minutes = self.training.max_minutes
        return 0.0 if minutes is None else self.state.seconds / (60 * minutes)

    def done(self) -> tuple[int, int]:
        steps = self.training.steps
        return max(self.state.step, round(min(self.elapsed(), 1.0) * steps)), steps

    def rate(self) -> float:
        return self.training.rate(self.state.step, self.time_used)

    def micro_batches(self) -> tuple[list[MicroBatch], int]:
        step, training, processes = self.state.step, self.training, self.processes
        shares = micro_batch_shares(training.batch_size, training.accumulate, processes)
        batches = [self.source.rows(step, start, stop) for start, stop, _, _ in shares]
        # the weight of a target must be known before the first micro-batch is computed
        targets = int(processes.sum(torch.tensor(sum(batch.num_targets for batch in batches))))
        weight = processes.world_size / max(targets, 1)
        return [
            MicroBatch(batch, (first, rows), weight)
            for batch, (_, _, first, rows) in zip(batches, shares, strict=True)
        ], targets

    def loss(self, replica: nn.Module, data: Batch) -> tuple[Tensor, Tensor]:
        loss = self.objective.summed_loss(replica, data.to(self.device), dtype=self.training.dtype)
        return loss, torch.tensor(data.num_targets, device=self.device)

    def measure(self, loss: float, count: float) -> Measured:
        training = self.training
        train_loss = loss / count if count else 0.0
        self.refuse_nonfinite("training", train_loss)
        validation_loss = evaluate_lm(
            self.model,
            self.validation,
            length=training.length,
            batch_size=2 * math.ceil(training.batch_size / training.accumulate),  # no gradients
            batches=training.evaluation_batches,
            dtype=training.dtype,
            separate=training.separate,
            device=str(self.device),
        )
        self.refuse_nonfinite("validation", validation_loss)
        return Measured(
            step=self.state.step,
            tokens=self.state.tokens,
            train_loss=train_loss,
            validation_loss=validation_loss,
            learning_rate=self.learning_rate,
            seconds=self.state.seconds,
        )

    def after_validation(self, record: Measured, *, is_best: bool) -> None:
        self._step_loss = None
        bits = {} if self.amount is None else self.amount.bits(record.validation_loss)
        self.log.write({**asdict(record), **bits})
        if not is_best:
            return
        if self.result is not self.model:
            sharded.fill(self.result, self.state.best)
        if self.keep is not None:
            self.keep(record)

    def after_reading(self, loss: float) -> None:
        state = self.state
        self._step_loss = loss
        record = {"step": state.step, "loss": loss, "learning_rate": self.learning_rate}
        self.log.write({**record, "seconds": state.seconds})
        super().after_reading(loss)

    def describe(self) -> str:
        state, training = self.state, self.training
        total = f"/{training.steps:,}" if training.max_minutes is None else ""
        words = [f"step {state.step:,}{total}"]
        if self._step_loss is not None:
            words.append(f"loss {self._step_loss:.3f}")
        if state.history:
            words.append(f"validation {state.history[-1].validation_loss:.4f}")
        if state.seconds:
            words.append(f"{state.tokens / state.seconds:,.0f} tokens/s")
        return ", ".join(words)

    def place(self) -> dict[str, Any]:
        return {"step": self.state.step}


def micro_batch_shares(
    size: int, accumulate: int, processes: Processes
) -> list[tuple[int, int, int, int]]:
    """Return this process's rows of each micro-batch: (start, stop, first row, rows in all).

    Both are contiguous: a mask of dropout drawn for a micro-batch is that of one process.
    """
    shares = []
    for number in range(accumulate):
        first, last = Processes(number, accumulate).share(size)
        start, stop = processes.share(last - first)
        shares.append((first + start, first + stop, start, last - first))
    return shares


@contextlib.contextmanager
def gradient_checkpointing(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Recompute the inside of each block in the backward pass, with the same dropout."""
    blocks = [m for m in model.modules() if isinstance(m, Block)] if enabled else []
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


class Log:
    """Appends records to a JSON lines file and a TensorBoard folder, from a checkpoint's step."""

    def __init__(self, path: Path | None, tensorboard: Path | None = None, *, step: int) -> None:
        self._path, self._events = path, None
        if path is not None:
            with _writing(path):
                lines: list[str] = []
                if step and path.is_file():
                    lines = path.read_text("utf-8", errors="replace").splitlines(keepends=True)
                earlier = [line for line in lines if _step(line) <= step]
                with replacing(path) as temporary:
                    temporary.write_text("".join(earlier), encoding="ascii", newline="\n")
        if tensorboard is not None:
            otherwise = ", or leave it out: the log has the same numbers"
            with installed_for("a folder of TensorBoard", "tensorboard", otherwise):
                from torch.utils.tensorboard import SummaryWriter
            purge = step + 1 if step else None
            self._events = SummaryWriter(str(tensorboard), purge_step=purge)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; TensorBoard gets its numbers at its step."""
        if self._path is not None:
            line = json.dumps(record) + "\n"
            with _writing(self._path), self._path.open("a", encoding="ascii", newline="\n") as file:
                file.write(line)
        if self._events is not None:
            for name, value in record.items():
                if name != "step":
                    self._events.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write the log {path} ({error.strerror or error}); free space or give a folder "
            "that can be written."
        ) from error


def _step(line: str) -> float:
    """Return the step of a line; infinity for one that was cut short."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf
