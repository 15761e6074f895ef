"""Hyperparameters of one training run: by epochs over a data set, or by steps over tokens."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from suffice.errors import ConfigError, check_known, unknown
from suffice.train.augment import AUGMENTATIONS
from suffice.train.optimiser import ADAMW, MUON, SCHEDULES, check_optimiser, schedule_factor
from suffice.utils.records import check_fields

DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of the optimiser, of its schedule and of when to stop.

    Args:
        epochs: passes over the training split, >= 1.
        batch_size: rows of a global batch, over all processes together, >= 1.
        learning_rate: the rate after the warm-up, > 0.
        weight_decay: decoupled decay of tensors with two or more dimensions; vectors and
            scalars (biases, norms) are never decayed.
        betas: AdamW's two decay rates, each in [0, 1).
        warmup: share of all steps during which the rate rises linearly, in [0, 1).
        schedule: "constant", or "cosine" (down to zero at the end of the last epoch).
        clip: largest global gradient norm; None leaves gradients as they are.
        label_smoothing: share of a label spread over all classes, in [0, 1).
        patience: epochs without a better validation loss before stopping; None never stops early.
        enough: validation accuracy, at which training ends at the end of an epoch, above 0 and at
            most 1; None trains on.
        augment: a name in `suffice.train.augment.AUGMENTATIONS`, for images only.
        optimiser: "adamw", or "muon" for the matrices inside the blocks and AdamW for the rest, see
            `suffice.train.optimiser.build`.
        dtype: "float32", or "bfloat16" for products in it (autocast) while gradients are computed;
            weights, validation and test stay in float32.

    Raises:
        ConfigError: naming every value that is not legal.

    Example:
        >>> Training(epochs=0, batch_size=32, learning_rate=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: epochs=0; give an integer >= 1. learning_rate=-1.0; give a ...
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: float = 0.0
    schedule: str = "constant"
    clip: float | None = None
    label_smoothing: float = 0.0
    patience: int | None = None
    enough: float | None = None
    augment: str | None = None
    optimiser: str = ADAMW
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_fields(self)
        check_known("schedule", self.schedule, SCHEDULES)
        check_known("dtype", self.dtype, DTYPES)
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise unknown("augmentation", self.augment, AUGMENTATIONS)
        check_optimiser(self.optimiser)
        wrong = out_of_range(
            self,
            counts=("epochs", "batch_size", "patience"),
            positive=("learning_rate", "clip", "enough"),
            fractions=("warmup", "label_smoothing"),
        )
        if self.enough is not None and self.enough > 1:
            wrong.append(f"enough={self.enough}; give at most 1.")
        if wrong:
            raise ConfigError(" ".join(wrong))


@dataclass(frozen=True, kw_only=True)
class LMTraining:
    """The settings of the optimiser, of its schedule, of the batches and of when to validate.

    Those that are not listed mean what they mean in `Training`.

    Args:
        steps: optimiser steps, >= 1.
        batch_size: rows of a step, over all micro-batches and processes together, >= 1.
        length: tokens that a row reads, >= 1.
        learning_rate: the rate after the warm-up, > 0.
        min_learning_rate: final learning rate of the cosine schedule, from 0 to learning_rate.
        warmup: steps during which the rate rises linearly, from 0 to below steps.
        accumulate: micro-batches that a step's rows are computed in, one after another, >= 1. The
            loss is the mean over the targets of all of them, however many each has.
        evaluate_every: steps between two validations; one follows the last step, too.
        evaluation_batches: number of validation batches of batch_size rows, spread evenly over the
            validation text; None reads all of it.
        checkpointing: recompute the inside of a block in the backward pass instead of keeping it;
            the result is the same, with less memory and about a third more time.
        shard: cut the weights, gradients and moments between the processes that torchrun started
            (FSDP2) instead of giving each all of them (DDP); the result is the same within
            rounding, with less memory and more exchange. One process holds all.
        documents: whether documents that share a row attend to each other, as nanoGPT's do
            ("joined"), or not ("separate"): then the first token of one is not predicted from the
            one before.
        max_minutes: minutes of training over all sessions; the run ends when they are used up. The
            learning rate follows the time if that is further along than the steps, so that it is
            lowest when the run ends. Such a run depends on the machine's speed.

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
    optimiser: str = ADAMW

    def __post_init__(self) -> None:
        check_fields(self)
        check_known("dtype", self.dtype, DTYPES)
        check_known("documents", self.documents, ("joined", "separate"))
        check_optimiser(self.optimiser)
        wrong = out_of_range(
            self,
            counts=(
                "steps",
                "batch_size",
                "length",
                "accumulate",
                "evaluate_every",
                "evaluation_batches",
            ),
            positive=("learning_rate", "clip", "max_minutes"),
        )
        if not 0 <= self.warmup < max(self.steps, 1):
            wrong.append(f"warmup={self.warmup}; give 0 to {self.steps - 1} steps.")
        if not 0 <= self.min_learning_rate <= max(self.learning_rate, 0):
            wrong.append(
                f"min_learning_rate={self.min_learning_rate}; give 0 to learning_rate="
                f"{self.learning_rate}."
            )
        if self.accumulate > max(self.batch_size, 1):
            wrong.append(
                f"accumulate={self.accumulate} micro-batches of batch_size={self.batch_size} rows; "
                "give at most one for each row."
            )
        if self.shard and self.optimiser == MUON:
            wrong.append(
                f"optimiser={MUON} needs whole matrices; leave shard out, or take {ADAMW}."
            )
        if wrong:
            raise ConfigError(" ".join(wrong))

    @property
    def separate(self) -> bool:
        """Whether documents that share a row are kept apart."""
        return self.documents == "separate"

    def rate(self, step: int, time_used: float = 0.0) -> float:
        """Return the learning rate of a step, counted from 0.

        Example:
            >>> sizes = dict(steps=4, batch_size=1, length=1, warmup=2)
            >>> training = LMTraining(**sizes, learning_rate=1.0, min_learning_rate=0.2)
            >>> [round(training.rate(step), 3) for step in range(4)]
            [0.5, 1.0, 1.0, 0.6]
        """
        warmup = self.warmup / self.steps
        rising = step < self.warmup
        at = step if rising else max(step, time_used * self.steps)
        part = schedule_factor(at, total=self.steps, warmup=warmup, schedule="cosine")
        lowest = 0.0 if rising else self.min_learning_rate
        return lowest + (self.learning_rate - lowest) * part


def autocast(device: torch.device, dtype: str) -> contextlib.AbstractContextManager[object]:
    """Return the context in which products are computed in a dtype of `Training`."""
    lower = DTYPES[dtype]
    if lower is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=lower)


def out_of_range(
    training: Any,
    *,
    counts: tuple[str, ...],
    positive: tuple[str, ...],
    fractions: tuple[str, ...] = (),
) -> list[str]:
    """Return a sentence for each setting that is out of range; None is in any range.

    `counts` are integers from 1, `positive` numbers above 0, `fractions` from 0 to below 1. AdamW's
    own settings are checked too.
    """
    values = {name: value for name, value in vars(training).items() if value is not None}
    wrong = [f"{n}={values[n]}; give an integer >= 1." for n in counts if values.get(n, 1) < 1]
    wrong += [f"{n}={values[n]}; give a number above 0." for n in positive if values.get(n, 1) <= 0]
    wrong += [
        f"{n}={values[n]}; give a number >= 0 and below 1."
        for n in fractions
        if not 0 <= values.get(n, 0) < 1
    ]
    if training.weight_decay < 0:
        wrong.append(f"weight_decay={training.weight_decay}; give a number >= 0.")
    if not all(0 <= beta < 1 for beta in training.betas):
        wrong.append(f"betas={training.betas}; give two numbers >= 0 and below 1.")
    return wrong


def derive(purpose: str, seed: int, epoch: int = 0) -> int:
    """Return a seed for one purpose; equal arguments give equal seeds, others unrelated ones.

    Torch's CPU generator keeps the low 32 bits of a seed only, so sums and shifts of (seed, epoch)
    would collide; a digest does not.

    Example:
        >>> derive("order", 1, 2) == derive("order", 1, 2), derive("order", 2, 1) != derive("x", 2)
        (True, True)
    """
    text = f"{purpose}/{seed}/{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def generator(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """Return a CPU generator seeded with `derive(purpose, seed, epoch)`."""
    return torch.Generator().manual_seed(derive(purpose, seed, epoch))
