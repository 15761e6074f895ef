"""How a model is trained: the settings of one run."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch

from suffice.errors import ConfigError, unknown
from suffice.train.augment import AUGMENTATIONS
from suffice.train.optimiser import SCHEDULES


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of AdamW, of its schedule and of when to stop.

    Args:
        epochs: passes over the training split, >= 1.
        batch_size: rows of a global batch, over all processes together, >= 1.
        learning_rate: AdamW's rate after the warm-up, > 0.
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

    Raises:
        ConfigError: if a value is not legal; all of them are told at once.

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

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise unknown("augmentation", self.augment, AUGMENTATIONS)
        if wrong := conflicts(self):
            raise ConfigError(" ".join(wrong))


def conflicts(training: Training) -> list[str]:
    """Return a sentence for each number of `training` that is not legal."""
    counts = {"epochs": training.epochs, "batch_size": training.batch_size}
    positives = {"learning_rate": training.learning_rate}
    shares = {"warmup": training.warmup, "label_smoothing": training.label_smoothing}
    if training.patience is not None:
        counts["patience"] = training.patience
    if training.clip is not None:
        positives["clip"] = training.clip
    wrong = [f"{k}={v!r}; give an integer >= 1." for k, v in counts.items() if not _is_count(v)]
    wrong += [
        f"{k}={v!r}; give a finite number above 0."
        for k, v in positives.items()
        if not (_is_number(v) and v > 0)
    ]
    enough = training.enough
    if enough is not None and not (_is_number(enough) and 0 < enough <= 1):
        wrong.append(f"enough={enough!r}; give a number above 0 and at most 1, or None.")
    wrong += [
        f"{k}={v!r}; give a number >= 0 and below 1."
        for k, v in shares.items()
        if not is_fraction(v)
    ]
    if not (_is_number(training.weight_decay) and training.weight_decay >= 0):
        wrong.append(f"weight_decay={training.weight_decay!r}; give a finite number >= 0.")
    if not (
        isinstance(training.betas, tuple)
        and len(training.betas) == 2
        and all(is_fraction(beta) for beta in training.betas)
    ):
        wrong.append(f"betas={training.betas!r}; give a tuple of two numbers >= 0 and below 1.")
    return wrong


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_fraction(value: object) -> bool:
    """Return whether a value is a number from 0 to below 1."""
    return _is_number(value) and 0 <= value < 1


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
