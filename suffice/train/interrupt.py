"""Ctrl-C during a training: the step in progress ends, and the state is saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


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
    """Whether Ctrl-C was pressed; a second press interrupts at once.

    torchrun sends its processes the signal more than once and kills those that take too long, so
    there every signal after the first is ignored.
    """

    pressed: bool = False

    def notice(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's own
        """Remember the first signal; raise KeyboardInterrupt at the second."""
        if self.pressed and not _is_torchrun():
            raise KeyboardInterrupt("interrupted twice; what was not saved is lost.")
        self.pressed = True


@contextlib.contextmanager
def catching_interrupts() -> Iterator[Interrupts]:
    """Note Ctrl-C during the block instead of raising; restore the earlier handler afterwards.

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
        after = before if before is not None else signal.SIG_DFL
        ends = interrupts.pressed and _is_torchrun()  # what follows is told, not interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN if ends else after)
    if interrupts.pressed:  # it came after the last check; a Ctrl-C is never lost
        raise KeyboardInterrupt("interrupted at the end.")


def _is_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ
