"""What training leaves behind: one record for each epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the training split.

    Args:
        epoch: its number, from 1.
        train_loss: mean loss of the answers as they were trained on, label smoothing included.
        train_accuracy: share of those answers whose largest logit was the label's, 0 to 1.
        validation_loss: mean cross-entropy over the validation answers after the epoch.
        validation_accuracy: share of the validation answers that were right, 0 to 1.
        seconds: duration of the training part alone.
    """

    epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished training.

    Args:
        epochs: the record of each epoch.
        best_epoch: number, from 1, of the epoch with the lowest validation loss.
        stopped_early: whether `patience` or `enough` ended the run before its last epoch.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped_early: bool
