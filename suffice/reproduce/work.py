"""Training what a table lacks, by one of the engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from suffice.data import load
from suffice.errors import ConfigError, unknown
from suffice.measure.lock import locked
from suffice.measure.plan import Plan
from suffice.reproduce.finished import Key, claim
from suffice.reproduce.jobs import Jobs
from suffice.reproduce.order import Order, order_of
from suffice.reproduce.watch import Watch, watching

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class Means:
    """How cells are run; nothing here changes what becomes of them, but for the threads.

    Args:
        jobs: how many at a time.
        threads: of each training.
        minutes: no cell is begun after these; None for no limit.
        engine: "local" for processes here, "ray" for a cluster.
        address: of the cluster: "auto" for the one this machine belongs to, "local" for one
            made for the occasion.
        quiet: show no progress.

    Raises:
        ConfigError: if a number is not positive or the engine unknown.
    """

    jobs: int = 1
    threads: int = 1
    minutes: float | None = None
    engine: str = "local"
    address: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1.")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--max-minutes {self.minutes:g}: give a time above 0.")
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise ConfigError("--address names a cluster; give it with --engine ray.")


def run_cells(
    plan: Plan, keys: list[Key], folder: Path, means: Means, *, console: Console, command: str
) -> list[Key]:
    """Train cells and return the keys of those that were finished.

    Args:
        plan: their recipe and device.
        keys: which, in this order.
        folder: the working folder.
        means: how.
        console: where progress is shown.
        command: what the folder names as its origin.

    Raises:
        ConfigError: if the folder is another table's, or another program works there.
        DataError: if the data cannot be had or a file not be read or written.
        StateError: if a cell lost its worker too often.
        KeyboardInterrupt: on Ctrl-C; what was done is kept.
    """
    deadline = None if means.minutes is None else time.monotonic() + 60 * means.minutes
    order = order_of(plan, folder, means.threads)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with locked(folder):
        claim(folder, plan, command=command, started=started, threads=means.threads)
        # the data are there before several workers look for them
        shown = None if means.quiet else console
        load(plan.recipe.task, console=shown, **dict(plan.recipe.task_options))
        with watching(console, len(keys), quiet=means.quiet) as watch:
            return _engine(means)(order, keys, watch, deadline, means)


Engine = Callable[[Order, list[Key], Watch, "float | None", Means], list[Key]]


def _engine(means: Means) -> Engine:
    """Return the function that trains."""
    if means.engine == "local":
        return _local
    from suffice.reproduce.on_ray import on_ray

    return on_ray


def _local(
    order: Order, keys: list[Key], watch: Watch, deadline: float | None, means: Means
) -> list[Key]:
    return Jobs(order=order, keys=keys, watch=watch, deadline=deadline).run(means.jobs)
