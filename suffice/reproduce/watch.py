"""How far several cells are: a bar for each on a terminal, elsewhere a line when one ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from suffice.reproduce.finished import Key


class Watch(Protocol):
    """What an engine tells about its cells."""

    def begin(self, number: int, key: Key) -> None:
        """Say that worker `number` begins a cell."""

    def step(self, number: int, done: int, total: int) -> None:
        """Say how much of its cell is done."""

    def end(self, number: int, key: Key) -> None:
        """Say that a cell is finished."""

    def lost(self, key: Key) -> None:
        """Say that a worker was lost and its cell goes back."""


def told(key: Key) -> str:
    """Name a cell.

    Example:
        >>> told(("efficient", 4, 0))
        'efficient heads 4 seed 0'
    """
    mechanism, heads, seed = key
    return f"{mechanism} heads {heads} seed {seed}"


class Lines:
    """One line per finished or lost cell.

    Args:
        console: where to.
        cells: how many there are.
        quiet: say nothing.
    """

    def __init__(self, console: Console, cells: int, *, quiet: bool) -> None:
        self.console = console
        self.cells = cells
        self.done = 0
        self._quiet = quiet
        self._lock = threading.Lock()

    def begin(self, number: int, key: Key) -> None:
        """Say nothing yet."""

    def step(self, number: int, done: int, total: int) -> None:
        """Say nothing yet."""

    def end(self, number: int, key: Key) -> None:  # noqa: ARG002 - of the protocol
        """Print that a cell is finished."""
        with self._lock:
            self.done += 1
            self.print(f"{told(key)} finished, {self.done} of {self.cells}")

    def lost(self, key: Key) -> None:
        """Print that a worker was lost."""
        self.print(f"the worker of {told(key)} was lost; the cell is run again")

    def print(self, text: str) -> None:
        """Print one line unless quiet."""
        if not self._quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Lines):
    """A bar for each worker.

    Args:
        console: a terminal.
        cells: how many there are.
    """

    def __init__(self, console: Console, cells: int) -> None:
        super().__init__(console, cells, quiet=False)
        self.rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[int, int] = {}

    def begin(self, number: int, key: Key) -> None:
        """Begin a bar."""
        task = self._tasks.get(number)
        if task is not None:
            self.rich.remove_task(task)
        self._tasks[number] = self.rich.add_task(told(key), total=1.0)

    def step(self, number: int, done: int, total: int) -> None:
        """Move a bar."""
        self.rich.update(self._tasks[number], completed=done / total)


@contextlib.contextmanager
def watching(console: Console, cells: int, *, quiet: bool = False) -> Iterator[Watch]:
    """Give the display that fits the console, for the time of the block."""
    if quiet or not console.is_terminal:
        yield Lines(console, cells, quiet=quiet)
        return
    bars = Bars(console, cells)
    with bars.rich:
        yield bars
