"""How a long run tells where it is: a bar on a terminal, plain lines elsewhere, or nothing.

One display lives across many trainings: `cell` begins the next one, `step` says how far it is.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

from suffice.train.distributed import current

WIDE = 120  # columns of a terminal that has room for the remark


class Progress(Protocol):
    """What `fit` and `compare` call."""

    def cell(self, description: str) -> None:
        """Begin the next piece of work, whole or not the one before."""

    def step(self, done: int, total: int) -> None:
        """Say how much of the cell is done; cheap enough for every optimiser step."""

    def say(self, text: str) -> None:
        """Replace the remark beside the cell, such as its latest loss."""


class Silent:
    """Shows nothing."""

    def cell(self, description: str) -> None:
        """Show nothing."""

    def step(self, done: int, total: int) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""


class _Display(ABC):
    """Counts cells and steps, and draws at most once per interval.

    Args:
        console: where to draw.
        cells: pieces of work in all, those done before included.
        done: cells that were done before; they do not enter the estimate of time.
        interval: seconds between two drawings.
        clock: seconds from any origin.
    """

    def __init__(
        self,
        console: Console,
        *,
        cells: int,
        done: int,
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        self.console = console
        self._cells = cells
        self._before = done
        self._begun = done
        self._share = 0.0
        self._description = ""
        self._text = ""
        self._interval = interval
        self._clock = clock
        self._started = clock()
        self._due = self._started + interval

    def cell(self, description: str) -> None:
        """Begin the next cell."""
        self._begun += 1
        self._share = 0.0
        self._description, self._text = description, ""

    def step(self, done: int, total: int) -> None:
        """Note how much of the cell is done and draw when it is time."""
        self._share = done / total
        if self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self.draw()

    def say(self, text: str) -> None:
        """Note the remark; the next drawing shows it."""
        self._text = text

    @abstractmethod
    def draw(self) -> None:
        """Show the state now."""

    @property
    def title(self) -> str:
        """The cell and its number among many."""
        number = f"cell {max(self._begun, 1)}/{self._cells}" if self._cells > 1 else ""
        return f"{number} {self._description}".strip() or "training"

    @property
    def finished(self) -> float:
        """Cells that are done, the share of the present one included."""
        return max(self._begun - 1, self._before) + self._share

    @property
    def left(self) -> str:
        """The time left, from the pace so far; question marks before there is one."""
        here = self.finished - self._before
        if here <= 0.0:
            return "?:?? left"
        pace = (self._clock() - self._started) / here
        seconds = round(pace * max(self._cells - self.finished, 0.0))
        hours, minutes = divmod(seconds // 60, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        return f"{clock}:{seconds % 60:02} left"


class Lines(_Display):
    """One plain line per interval, for logs and pipes."""

    def draw(self) -> None:
        """Print a line."""
        share = self.finished / self._cells
        parts = [self.title, self._text, f"{share:.0%}", self.left]
        line = ", ".join(part for part in parts if part)
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Bar(_Display):
    """A rich progress bar over all cells.

    It is redrawn from `step` alone: a refreshing thread would take time from small models.
    """

    def __init__(
        self,
        console: Console,
        *,
        cells: int,
        done: int,
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(console, cells=cells, done=done, interval=interval, clock=clock)
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24 if console.width >= WIDE else 10),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        ]
        if console.width >= WIDE:
            columns.append(TextColumn("{task.fields[text]}", markup=False))
        self.rich = RichProgress(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self.rich.add_task("", total=cells, left="", text="")

    def draw(self) -> None:
        """Redraw the bar."""
        self.rich.update(
            self._task,
            completed=self.finished,
            description=self.title,
            left=self.left,
            text=self._text,
            refresh=True,
        )

    def cell(self, description: str) -> None:
        """Begin the next cell and show it at once."""
        super().cell(description)
        self.draw()


@contextlib.contextmanager
def show(
    console: Console,
    *,
    cells: int = 1,
    done: int = 0,
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Give the display that fits the console, for the time of the block.

    A bar with the time left on a terminal, one line every ten seconds elsewhere; nothing when
    quiet and in all processes but the first.

    Args:
        console: where to draw.
        cells: pieces of work in all, those done before included.
        done: cells that were done before, in an earlier session.
        quiet: whether to show nothing.
        clock: seconds from any origin.
    """
    if quiet or not current().is_main:
        yield Silent()
    elif console.is_terminal:
        bar = Bar(console, cells=cells, done=done, interval=0.25, clock=clock)
        with bar.rich:
            yield bar
    else:
        yield Lines(console, cells=cells, done=done, interval=10.0, clock=clock)


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
