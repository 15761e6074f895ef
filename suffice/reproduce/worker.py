"""A process that trains one cell after the other.

It reads lines of JSON (an order, then one key for each cell) and answers with lines: how far a
cell is, that it is done, or what went wrong. When nobody is left to read, it ends at once: the
cell in progress has its checkpoint, and no finished cell is touched.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from suffice.data import load
from suffice.errors import SufficeError
from suffice.measure.training import train_cell
from suffice.reproduce.order import Order
from suffice.threads import threads
from suffice.train import current

ALONE = 3  # exit code of a worker whose parent is gone
PAUSE = 1.0  # seconds between two lines about one cell

Say = Callable[[dict[str, Any]], None]


class Told:
    """Progress that is sent to the parent.

    Args:
        say: sends one line.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._due = 0.0

    def cell(self, description: str) -> None:
        """Begin a cell; the parent knows which."""

    def step(self, done: int, total: int) -> None:
        """Send how much is done, now and then."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PAUSE
            self._say({"step": [done, total]})

    def say(self, text: str) -> None:
        """Leave remarks out."""


def serve(lines: Iterable[str], say: Say) -> None:
    """Train every cell that is asked for.

    Args:
        lines: the order, then a JSON list [mechanism, heads, seed] for each cell.
        say: sends an answer; {"done": key} once the cell's file is written.
    """
    found = iter(lines)
    order = Order.from_line(next(found))
    threads(order.threads)
    dataset = None
    for line in found:
        mechanism, num_heads, seed = key = tuple(json.loads(line))
        try:
            plan = order.plan(mechanism, num_heads)
            if dataset is None:
                dataset = load(plan.recipe.task, **dict(plan.recipe.task_options))
            train_cell(plan, key, dataset, Path(order.folder), current(), Told(say))
        except SufficeError as error:
            say({"error": str(error)})
            return
        say({"done": list(key)})


def _pump(lines: queue.SimpleQueue[str | None]) -> None:
    """Pass on what the parent says; end the process when it has gone."""
    for line in sys.stdin:
        if line == "\n":
            lines.put(None)
            return
        lines.put(line)
    os._exit(ALONE)


def main() -> None:
    """Serve the parent behind stdin and stdout."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(lines,), daemon=True).start()

    def say(answer: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    try:
        serve(iter(lines.get, None), say)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
