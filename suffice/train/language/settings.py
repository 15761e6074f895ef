"""How a language model is trained: the settings of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from suffice.errors import ConfigError, unknown
from suffice.records import check_fields
from suffice.train.language.log import Measured
from suffice.train.optimiser import share
from suffice.train.training_state import Moment, parts

DTYPES = {"float32": None, "bfloat16": torch.bfloat16}
COUNTS = ("steps", "batch_size", "length", "accumulate", "evaluate_every", "evaluation_batches")
POSITIVE = ("learning_rate", "clip", "max_minutes")


@dataclass(frozen=True, kw_only=True)
class LMTraining:
    """The settings of AdamW, of its schedule, of the batches and of when to look.

    Args:
        steps: optimiser steps, >= 1.
        batch_size: rows of a step, over all micro-batches and processes together, >= 1.
        length: tokens that a row reads, >= 1.
        learning_rate: AdamW's rate after the warm-up, > 0.
        min_learning_rate: what half a cosine lowers it to after the last step, from 0 to
            learning_rate.
        warmup: steps during which the rate rises linearly, from 0 to below steps.
        weight_decay: decoupled decay of tensors with two or more dimensions; vectors and
            scalars (biases, norms) are never decayed.
        betas: AdamW's two decay rates, each in [0, 1).
        clip: largest global gradient norm; None leaves gradients as they are.
        accumulate: micro-batches that a step's rows are computed in, one after another, >= 1. The
            loss is the mean over the targets of all of them, however many each has.
        evaluate_every: steps between two looks at the validation loss; the last step has one too.
        evaluation_batches: of batch_size rows, spread evenly over the validation text; None looks
            at all of it.
        dtype: "float32", or "bfloat16" for products in it (autocast); weights stay as they are.
        checkpointing: compute the inside of a block anew in the backward pass instead of keeping
            it; the result is the same, with less memory and about a third more time.
        shard: cut the weights, gradients and moments between the processes that torchrun started
            (FSDP2) instead of giving each all of them (DDP); the result is the same within
            rounding, with less memory and more exchange. One process holds all.
        documents: whether documents that share a row see each other, as nanoGPT's do ("joined"),
            or not ("separate"): then the first token of one is not predicted from the one before.
        max_minutes: of training, in all sessions together; the run ends early when they are over.
            The rate falls with the time where that is further than the steps, so that it is at its
            least when the run ends. Such a run depends on the machine's speed.

    Raises:
        ConfigError: if a value is not legal; all of them are told at once.

    Example:
        >>> LMTraining(steps=10, batch_size=4, length=0, learning_rate=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: length=0; give an integer >= 1. learning_rate=-1.0; give a ...
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    min_learning_rate: float = 0.0
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0
    accumulate: int = 1
    evaluate_every: int = 250
    evaluation_batches: int | None = None
    dtype: str = "float32"
    checkpointing: bool = False
    shard: bool = False
    documents: str = "joined"
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.documents not in ("joined", "separate"):
            raise unknown("documents", self.documents, ("joined", "separate"))
        if wrong := conflicts(self):
            raise ConfigError(" ".join(wrong))

    def rate(self, step: int, past: float = 0.0) -> float:
        """Return the learning rate of a step, counted from 0.

        Args:
            step: its number.
            past: share of the time that is over, 0 to 1.

        Example:
            >>> sizes = dict(steps=4, batch_size=1, length=1, warmup=2)
            >>> training = LMTraining(**sizes, learning_rate=1.0, min_learning_rate=0.2)
            >>> [round(training.rate(step), 3) for step in range(4)]
            [0.5, 1.0, 1.0, 0.6]
        """
        warmup = self.warmup / self.steps
        at = step if step < self.warmup else max(step, past * self.steps)
        part = share(at, total=self.steps, warmup=warmup, schedule="cosine")
        least = 0.0 if step < self.warmup else self.min_learning_rate
        return least + (self.learning_rate - least) * part


def conflicts(training: LMTraining) -> list[str]:
    """Return a sentence for each value that is not legal though of its kind."""
    named = {name: getattr(training, name) for name in (*COUNTS, *POSITIVE)}
    given = {name: value for name, value in named.items() if value is not None}
    wrong = [f"{k}={given[k]}; give an integer >= 1." for k in COUNTS if given.get(k, 1) < 1]
    wrong += [f"{k}={given[k]}; give a number above 0." for k in POSITIVE if given.get(k, 1.0) <= 0]
    if not 0 <= training.warmup < max(training.steps, 1):
        wrong.append(f"warmup={training.warmup}; give 0 to {training.steps - 1} steps.")
    if training.weight_decay < 0:
        wrong.append(f"weight_decay={training.weight_decay}; give a number >= 0.")
    if not 0 <= training.min_learning_rate <= max(training.learning_rate, 0):
        wrong.append(
            f"min_learning_rate={training.min_learning_rate}; give 0 to learning_rate="
            f"{training.learning_rate}."
        )
    if len(training.betas) != 2 or not all(_is_share(beta) for beta in training.betas):
        wrong.append(f"betas={training.betas}; give two numbers >= 0 and below 1.")
    if training.accumulate > max(training.batch_size, 1):
        wrong.append(
            f"accumulate={training.accumulate} micro-batches of batch_size={training.batch_size} "
            "rows; give at most one for each row."
        )
    return wrong


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1


FREE = ("max_minutes", "shard")  # settings that a resumed run may change


@dataclass(kw_only=True)
class LMState(Moment):
    """A training at one moment; its sums are the losses and the targets since the last look.

    Args:
        step: optimiser steps that are done.
        tokens: targets that were learned from.
        seconds: training time so far.
        best_step: steps after which the weights were what `best` holds; 0 before the first look.
    """

    KIND: ClassVar[str] = "training of a language model"
    COUNTERS: ClassVar[dict[str, type]] = {
        "step": int,
        "tokens": int,
        "seconds": float,
        "best_step": int,
    }
    RECORD: ClassVar[type] = Measured

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_step: int = 0

    @property
    def best_loss(self) -> float:
        """The lowest validation loss so far."""
        return min((one.validation_loss for one in self.history), default=math.inf)

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        super().keep_best()
        self.best_step = self.step

    @classmethod
    def sound(cls, facts: Mapping[str, Any]) -> bool:
        """Return whether looks were made at rising steps, up to the present one."""
        looks = [record["step"] for record in facts["history"]]
        rising = all(a < b for a, b in zip([0, *looks], [*looks, facts["step"] + 1], strict=True))
        return rising and facts["best_step"] in (looks or [0]) and facts["tokens"] >= 0


def start(
    model: nn.Module,
    training: LMTraining,
    *,
    data: dict[str, object],
    seed: int,
    device: torch.device,
) -> LMState:
    """Return the state of a training before its first step."""
    settings = {name: v for name, v in asdict(training).items() if name not in FREE}
    return LMState(
        identity={"seed": seed, "training": settings, "data": data, "device": device.type},
        **parts(model, training, device),
    )
