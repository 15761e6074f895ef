"""Interruption by Ctrl-C, and the records of a finished training."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):  # noqa: N818 - the family of KeyboardInterrupt
    """Training was interrupted and its state is safe.

    Args:
        checkpoint: the file a resumed run continues from; None when none was asked for.
        epoch: epoch in progress, from 1; None where a training counts steps alone.
        step: optimiser steps of that epoch, or of all, that are done.
    """

    def __init__(self, checkpoint: Path | None, *, epoch: int | None = None, step: int) -> None:
        inside = "" if epoch is None else f" in epoch {epoch}"
        where = f"interrupted{inside} after step {step}"
        then = f"resume from {checkpoint}" if checkpoint else "no checkpoint was asked for"
        super().__init__(f"{where}; {then}.")
        self.checkpoint = checkpoint
        self.epoch = epoch
        self.step = step


class Interrupts:
    """Whether Ctrl-C was pressed; a second one interrupts at once."""

    seen: bool = False

    def notice(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's own
        """Remember the first signal; raise KeyboardInterrupt at the second."""
        if self.seen:
            raise KeyboardInterrupt("interrupted twice; what was not saved is lost.")
        self.seen = True


@contextlib.contextmanager
def noticing() -> Iterator[Interrupts]:
    """Notice Ctrl-C during the block; the handler that was there returns afterwards.

    Python delivers signals to the main thread: in any other, nothing is installed.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.notice)
    try:
        yield interrupts
    finally:
        # None: a handler that was not installed from Python, which cannot be named again
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if interrupts.seen:  # it came after the last look; a Ctrl-C is never lost
        raise KeyboardInterrupt("interrupted at the end.")


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
