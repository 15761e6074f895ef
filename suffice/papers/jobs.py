"""Cells in processes of one machine: each trains a cell at a time, with threads of its own.

A worker that is lost (killed, out of memory) gives its cell back, and another one goes on from the
cell's checkpoint. What a cell becomes does not depend on how many work beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from suffice.data import load
from suffice.errors import ConfigError, DataError, StateError, SufficeError, unknown
from suffice.measure.plan import Plan, run_folder
from suffice.measure.training import train_cell
from suffice.papers.results import Key, claim
from suffice.recipes import Recipe, recipe
from suffice.recipes.own_data import of_user, path_of
from suffice.records import decode
from suffice.torch_compat import threads
from suffice.train import current


@dataclass(frozen=True, kw_only=True)
class Order:
    """The part of a plan that a cell depends on; plain data, so that any process can take it.

    Args:
        recipe: name.
        scale: "paper" or "small".
        data: where files of the user's lie that it reads, None for the task's own.
        training: fields of the training that differ from the recipe's.
        device: "cpu" or "cuda".
        folder: where cells are written.
        threads: of each training.
    """

    recipe: str
    scale: str
    data: str | None
    training: dict[str, Any]
    device: str
    folder: str
    threads: int

    @property
    def made(self) -> Recipe:
        """The recipe itself."""
        found = recipe(self.recipe, scale=self.scale)
        if self.data is not None:
            found = of_user(found, self.data)
        return dataclasses.replace(
            found, training=dataclasses.replace(found.training, **self.training)
        )

    def plan(self, mechanism: str, num_heads: int) -> Plan:
        """Return the plan that has the cells of one mechanism with these heads."""
        return Plan(
            recipe=self.made,
            mechanisms=(mechanism,),
            heads=(num_heads,),
            seeds=1,
            baseline=mechanism,
            device=self.device,
        )

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @staticmethod
    def from_line(line: str) -> Order:
        """Rebuild what `to_line` gave."""
        return decode(Order, json.loads(line), where="the order")


def order_of(plan: Plan, folder: Path, threads: int) -> Order:
    """Return what workers are told about a plan.

    Raises:
        ConfigError: if the plan's recipe is not one by name, so that no worker could make it.
    """
    given = plan.recipe
    named = recipe(given.name, scale=given.scale)
    asked, usual = dataclasses.asdict(given.training), dataclasses.asdict(named.training)
    changed = {key: value for key, value in asked.items() if value != usual[key]}
    found = Order(
        recipe=given.name,
        scale=given.scale,
        data=None if path_of(given) == path_of(named) else path_of(given),
        training=changed,
        device=plan.device,
        folder=str(folder.absolute()),
        threads=threads,
    )
    if found.made != given:
        raise ConfigError(
            f"recipe {given.name} differs from the one of that name in more than its training; "
            "workers make recipes by name."
        )
    return found


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


LOSSES = 3  # of workers with the same cell, before that cell is given up
START = """
try:
    main()
except KeyboardInterrupt:  # also while modules are loaded
    raise SystemExit(130) from None
"""
GRACE = 20.0  # seconds a worker has to write its checkpoint after Ctrl-C


@dataclass(kw_only=True)
class Jobs:
    """Workers, the cells they share and what became of them.

    Args:
        order: what every worker is told first.
        keys: cells to train, in this order.
        watch: told what happens.
        deadline: no cell is begun after this time of `time.monotonic`; None for none.
    """

    order: Order
    keys: list[Key]
    watch: Watch
    deadline: float | None = None
    done: list[Key] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _losses: Counter[Key] = field(default_factory=Counter)
    _failure: Exception | None = None
    _processes: set[subprocess.Popen[str]] = field(default_factory=set)
    _stopped: bool = False
    _left: deque[Key] = field(default_factory=deque)

    def run(self, jobs: int) -> list[Key]:
        """Train the cells in this many processes and return those that were finished.

        Raises:
            DataError: what a worker told that it could not do.
            StateError: if a cell lost its worker too often.
            KeyboardInterrupt: on Ctrl-C; the workers have written their checkpoints.
        """
        self._left = deque(self.keys)
        # not Thread.join: interrupted by Ctrl-C, it takes a living thread for ended (Python 3.11)
        ended = [threading.Event() for _ in range(min(jobs, len(self.keys)))]
        for number, event in enumerate(ended):
            threading.Thread(target=self._lane, args=(number, event), daemon=True).start()
        try:
            for event in ended:
                while not event.wait(0.1):
                    pass
        except KeyboardInterrupt:
            self._stop(signal.SIGINT)
            until = time.monotonic() + GRACE
            for event in ended:
                event.wait(max(0.0, until - time.monotonic()))
            self._stop(signal.SIGKILL)
            raise
        if self._failure is not None:
            raise self._failure
        return self.done

    def _next(self) -> Key | None:
        """Take the next cell, None when no more is to begin."""
        with self._lock:
            over = self.deadline is not None and time.monotonic() >= self.deadline
            if self._stopped or self._failure is not None or over or not self._left:
                return None
            return self._left.popleft()

    def _lane(self, number: int, ended: threading.Event) -> None:
        """Keep one worker busy; replace it when it is lost."""
        process: subprocess.Popen[str] | None = None
        try:
            while (key := self._next()) is not None:
                if process is None:
                    process = self._start()
                self.watch.begin(number, key)
                if not self._train(process, number, key):
                    self._end(process)
                    process = None
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self._fail(error)
        finally:
            if process is not None:
                self._end(process)
            ended.set()

    def _train(self, process: subprocess.Popen[str], number: int, key: Key) -> bool:
        """Have one cell trained; False if the worker is of no more use."""
        with contextlib.suppress(OSError):  # its death is told by the end of what it says
            process.stdin.write(json.dumps(key) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                self.watch.step(number, *answer["step"])
            elif "done" in answer:
                with self._lock:
                    self.done.append(key)
                self.watch.end(number, key)
                return True
            else:
                self._fail(DataError(answer["error"]))
                return False
        if not self._stopped:
            self._lost(key)
        return False

    def _lost(self, key: Key) -> None:
        """Give a cell back, or give it up."""
        with self._lock:
            self._losses[key] += 1
            self._left.appendleft(key)
        self.watch.lost(key)
        if self._losses[key] >= LOSSES:
            mechanism, heads, seed = key
            self._fail(
                StateError(
                    f"{LOSSES} workers were lost while they trained {mechanism} with {heads} "
                    f"heads, seed {seed}; is there memory enough for --jobs as many?"
                )
            )

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = self._failure or error

    def _start(self) -> subprocess.Popen[str]:
        """Start a worker in a session of its own, so that Ctrl-C reaches it once."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.order.threads)}
        process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        with self._lock:
            self._processes.add(process)
            if self._stopped:
                process.kill()
        process.stdin.write(self.order.to_line())
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Let a worker go and wait until it has gone."""
        with contextlib.suppress(OSError):
            process.stdin.write("\n")
            process.stdin.close()
        process.stdout.close()
        process.wait()
        with self._lock:
            self._processes.discard(process)

    def _stop(self, number: signal.Signals) -> None:
        """Send a signal to every worker; no further cell is begun."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.send_signal(number)


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
    with run_folder(folder).locked():
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
    from suffice.papers.on_ray import on_ray

    return on_ray


def _local(
    order: Order, keys: list[Key], watch: Watch, deadline: float | None, means: Means
) -> list[Key]:
    return Jobs(order=order, keys=keys, watch=watch, deadline=deadline).run(means.jobs)
