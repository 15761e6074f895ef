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

    Fields without a comment are those of `Training`.
    """

    steps: int  # optimiser steps
    batch_size: int  # rows of a step, over all micro-batches and processes together
    length: int  # tokens that a row reads
    learning_rate: float  # after the warm-up
    min_learning_rate: float = 0.0  # final rate of the cosine schedule
    warmup: int = 0  # steps during which the rate rises linearly
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0
    # micro-batches of a step, one after another; the loss is over the targets of all
    accumulate: int = 1
    evaluate_every: int = 250  # steps between two validations; one follows the last step, too
    # spread evenly over the validation text; None reads all of it
    evaluation_batches: int | None = None
    dtype: str = "float32"
    # recompute blocks in the backward pass: less memory, a third more time
    checkpointing: bool = False
    # cut weights, gradients and moments between processes (FSDP2), instead of DDP
    shard: bool = False
    # of one row: "joined" attend to each other, as nanoGPT's do, "separate" do not
    documents: str = "joined"
    # over all sessions; the rate follows the time where that is further than the steps
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
        """Return the learning rate of a step, counted from 0."""
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

    `counts` are integers from 1, `positive` numbers above 0, `fractions` from 0 to below 1.
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

    A digest: torch's CPU generator keeps the low 32 bits alone, so sums and shifts would collide.
    """
    text = f"{purpose}/{seed}/{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def generator(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """Return a CPU generator seeded with `derive(purpose, seed, epoch)`."""
    return torch.Generator().manual_seed(derive(purpose, seed, epoch))
