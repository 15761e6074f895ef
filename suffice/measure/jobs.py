"""Trains the cells of a comparison side by side, in processes or on a Ray cluster.

Each worker trains one cell at a time with threads of its own. When a worker is lost (killed, out
of memory), its cell is run again and continues from its checkpoint. The result of a cell does not
depend on how many run beside it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from suffice.data import Dataset, load
from suffice.data.survey import survey
from suffice.errors import ConfigError, DataError, StateError, SufficeError, install_line, unknown
from suffice.measure.answers import Key
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.plan import (
    Plan,
    check_data,
    data_digest,
    read_plan,
    run_folder,
    same_training,
)
from suffice.measure.results import DataFacts, write_facts
from suffice.measure.training import train_cell
from suffice.train import current
from suffice.utils.files import read_record, write_json
from suffice.utils.progress import Silent, Workers, workers
from suffice.utils.torch_compat import threads

ENGINES = ("local", "ray")
MAX_LOSSES = 3  # of workers with the same cell, before that cell is given up
GRACE = 20.0  # seconds a worker has to write its checkpoint after Ctrl-C
POLL = 0.2  # seconds between two looks at the workers


RAN = "ran.json"  # of a working folder


def cell_name(key: Key) -> str:
    """Name a cell in a message.

    Example:
        >>> cell_name(("efficient", 4, 0))
        'efficient heads 4 seed 0'
    """
    mechanism, heads, seed = key
    return f"{mechanism} heads {heads} seed {seed}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Machine, versions and settings behind the cells of a working folder."""

    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    command: str
    started: str
    threads: int
    data: str | None = None


def claim(folder: Path, plan: Plan, *, command: str, started: str, threads: int) -> None:
    """Make a folder this plan's working folder, or find that it fits the one there."""
    if not run_folder(folder).exists():
        plan.claim(folder, resume=False)
    refuse_another(folder, plan)
    ran = read_provenance(folder)
    if ran is not None and ran.threads != threads:
        raise ConfigError(
            f"the cells in {folder} were trained with {ran.threads} threads each, not {threads}; "
            f"give --threads {ran.threads}, or another folder with --out."
        )
    if ran is None:
        content = {
            "machine": {**machine_facts(), "threads": threads},
            "versions": software_versions(),
            "commit": source_commit(),
            "command": command,
            "started": started,
            "threads": threads,
            "data": data_digest(plan.recipe),
        }
        write_json(folder / RAN, content)


def refuse_another(folder: Path, plan: Plan) -> None:
    """Refuse a folder whose cells have other settings."""
    saved = read_plan(folder)
    if saved.device != plan.device or not same_training(saved.recipe, plan.recipe):
        raise ConfigError(
            f"{folder} holds cells of other settings ({saved.recipe.get('name')}, scale "
            f"{saved.recipe.get('scale')}, {saved.device}); name another folder with --out."
        )
    ran = read_provenance(folder)
    if ran is not None:
        check_data(folder, ran.data, plan.recipe)


def read_provenance(folder: Path) -> Provenance | None:
    """Read what a working folder ran on; None if nothing has run there, or by `suffice compare`."""
    path = folder / RAN
    return read_record(Provenance, path, advice="Delete it to go on.") if path.exists() else None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of a run of cells; only the number of threads can change a result."""

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
    plan: Plan, keys: list[Key], folder: Path, options: Execution, *, console: Console, command: str
) -> list[Key]:
    """Train cells and return the keys of those that were finished."""
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with run_folder(folder).locked():
        claim(folder, plan, command=command, started=started, threads=options.threads)
        # download before several workers look for the data
        task, task_options = plan.recipe.task, dict(plan.recipe.task_options)
        dataset = load(task, console=None if options.quiet else console, **task_options)
        write_facts(folder, DataFacts.of(dataset, survey(dataset)))
        return train_side_by_side(plan, keys, folder, options, console=console, deadline=deadline)


def train_side_by_side(
    plan: Plan,
    keys: list[Key],
    folder: Path,
    options: Execution,
    *,
    console: Console,
    deadline: float | None = None,
) -> list[Key]:
    """Train cells by the engine of the options, and return the keys of those that were finished.

    Args:
        plan: the comparison; its data are on every machine, and its folder is claimed.
        keys: the cells to train.
        folder: of the comparison.
        options: engine, jobs and threads.
        console: where progress is shown.
        deadline: monotonic time after which no cell is begun; None sets none.

    Raises:
        ConfigError: if what is trained depends on earlier cells.
    """
    if plan.auto or plan.tune is not None:
        raise ConfigError(
            "cells side by side with --seeds auto or --tune: which cells are trained depends on "
            "earlier ones; give a number of seeds and no --tune."
        )
    make = RayTasks if options.engine == "ray" else LocalProcesses
    with workers(console, len(keys), quiet=options.quiet) as display:
        engine: Engine = make(plan, folder, options)
        return train_cells(engine, keys, display, jobs=options.jobs, deadline=deadline)


class WorkerLostError(Exception):
    """The process or machine that trained a cell is gone."""


class Engine(Protocol):
    """Processes that train cells."""

    def submit(self, worker: int, key: Key) -> Future[str | None]:
        """Begin a cell; the result is why it failed, None if it was trained."""

    def result(self, worker: int, future: Future[str | None]) -> str | None:
        """Return the result of a finished cell; raises WorkerLostError."""

    def progress(self, worker: int) -> float:
        """Return the share of its cell that a worker has done."""

    def interrupt(self) -> None:
        """Let running cells write their checkpoints and end."""

    def close(self) -> None:
        """Release the workers."""


def train_cells(
    engine: Engine, keys: list[Key], display: Workers, *, jobs: int, deadline: float | None
) -> list[Key]:
    """Keep as many cells running as there are jobs, until none is left; see `run_cells`."""
    waiting, free, finished = deque(keys), deque(range(jobs)), []
    running: dict[Future[str | None], tuple[int, Key]] = {}
    losses: Counter[Key] = Counter()
    failure: Exception | None = None
    try:
        while True:
            while waiting and free and failure is None and not _is_over(deadline):
                worker, key = free.popleft(), waiting.popleft()
                running[engine.submit(worker, key)] = worker, key
                display.begin(worker, cell_name(key))
            if not running:
                break
            done, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
            for worker, _key in running.values():
                display.step(worker, engine.progress(worker), 1)
            for future in done:
                worker, key = running.pop(future)
                free.append(worker)
                error = _error_of(engine, worker, future)
                if error is None:
                    finished.append(key)
                    display.end(worker, cell_name(key))
                elif isinstance(error, WorkerLostError) and losses[key] + 1 < MAX_LOSSES:
                    losses[key] += 1
                    waiting.appendleft(key)
                    display.lost(cell_name(key))
                else:
                    failure = failure or _final(error, key)
    except KeyboardInterrupt:
        engine.interrupt()
        wait(running, timeout=GRACE)
        raise
    finally:
        engine.close()
    if failure is not None:
        raise failure
    return finished


def _error_of(engine: Engine, worker: int, future: Future[str | None]) -> Exception | None:
    try:
        reason = engine.result(worker, future)
    except Exception as error:  # noqa: BLE001 - raised when the other cells are done
        return error
    return None if reason is None else DataError(reason)


def _final(error: Exception, key: Key) -> Exception:
    if not isinstance(error, WorkerLostError):
        return error
    return StateError(
        f"{MAX_LOSSES} workers were lost while they trained {cell_name(key)}; is there enough "
        "memory for that many --jobs?"
    )


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def train_one(
    plan: Plan, key: Key, folder: Path, num_threads: int, progress: Any = None
) -> str | None:
    """Train one cell in this process and return why it failed, None if it was trained."""
    threads(num_threads)
    try:
        dataset = _dataset(plan.recipe.task, tuple(plan.data_options(key[2]).items()))
        train_cell(plan, key, dataset, folder, current(), progress or Silent())
    except SufficeError as error:
        return str(error)
    return None


@lru_cache(maxsize=1)
def _dataset(task: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    return load(task, **dict(options))


class LocalProcesses:
    """One process for each worker, replaced when it is lost.

    Every worker is a pool of its own: a pool that loses a process ends all of its processes.
    """

    def __init__(self, plan: Plan, folder: Path, options: Execution) -> None:
        self._arguments = plan, folder.absolute(), options.threads
        self._context = multiprocessing.get_context("spawn")
        self._shares = self._context.RawArray("d", options.jobs)
        self._process_ids = self._context.RawArray("q", options.jobs)  # of busy workers, else 0
        self._stopped = self._context.RawValue("b", 0)
        self._pools: dict[int, ProcessPoolExecutor] = {}

    def submit(self, worker: int, key: Key) -> Future[str | None]:
        """Begin a cell in the worker's process, which is started if there is none."""
        plan, folder, num_threads = self._arguments
        self._shares[worker] = 0.0
        if worker not in self._pools:
            self._pools[worker] = ProcessPoolExecutor(
                max_workers=1,
                mp_context=self._context,
                initializer=_begin_worker,
                initargs=(worker, self._shares, self._process_ids, self._stopped),
            )
        with _inherited_by_workers(num_threads):
            try:
                return self._pools[worker].submit(_train_in_worker, plan, key, folder, num_threads)
            except BrokenProcessPool as error:  # its process was lost between two cells
                future: Future[str | None] = Future()
                future.set_exception(error)
                return future

    def result(self, worker: int, future: Future[str | None]) -> str | None:
        """Return the result of a finished cell."""
        try:
            return future.result()
        except BrokenProcessPool as error:
            self._process_ids[worker] = 0
            self._pools.pop(worker).shutdown(wait=False)
            raise WorkerLostError from error

    def progress(self, worker: int) -> float:
        """Return the share of its cell that a worker has done."""
        return self._shares[worker]

    def interrupt(self) -> None:
        """Send Ctrl-C to each busy worker, once: a second one would cost the checkpoint."""
        self._stopped.value = 1
        self._signal(signal.SIGINT)

    def close(self) -> None:
        """End the workers; those that are still busy are killed."""
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._process_ids:
            if process:
                with contextlib.suppress(OSError):
                    os.kill(process, number)


@contextlib.contextmanager
def _inherited_by_workers(num_threads: int) -> Iterator[None]:
    """Start processes with this number of threads, and deaf to Ctrl-C until they train."""
    name, before = "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    os.environ[name] = str(num_threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
        if in_main_thread:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


class _Worker:
    """A worker process, as it reports to its parent through shared memory."""

    def __init__(self, number: int, shares: Any, process_ids: Any, stopped: Any) -> None:
        self._number, self._stopped = number, stopped
        self._shares, self._process_ids = shares, process_ids

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process_ids[self._number] = os.getpid()
        try:
            if self._stopped.value:
                raise KeyboardInterrupt
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._process_ids[self._number] = 0

    def cell(self, description: str) -> None:
        """The parent knows the cell."""

    def step(self, done: int, total: int) -> None:
        self._shares[self._number] = done / total

    def say(self, text: str) -> None:
        """Remarks are not shown."""


_worker: _Worker  # of this process, which trains for another one


def _begin_worker(*shared: Any) -> None:
    """Set up a process that the terminal's Ctrl-C does not reach and that ends with its parent."""
    global _worker
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(*shared)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_in_worker(plan: Plan, key: Key, folder: Path, num_threads: int) -> str | None:
    try:
        with _worker.busy():
            return train_one(plan, key, folder, num_threads, _worker)
    except KeyboardInterrupt:
        return "interrupted; the checkpoint was written."


class RayTasks:
    """One task of a Ray cluster for each cell; every machine must see the working folder."""

    def __init__(self, plan: Plan, folder: Path, options: Execution) -> None:
        self._arguments = plan, folder.absolute(), options.threads
        self._ray = _import_ray()
        address = options.address or "auto"
        place: dict[str, Any] = {"address": address}
        if address == "local":
            place = {"num_cpus": options.jobs * options.threads, "include_dashboard": False}
        try:
            self._ray.init(**place, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or "
                "give --address local."
            ) from error
        # a lost machine is handled by train_cells, not repeated unseen
        remote = self._ray.remote(num_cpus=options.threads, max_retries=0, max_calls=1)
        self._task = remote(train_one)

    def submit(self, worker: int, key: Key) -> Future[str | None]:  # noqa: ARG002 - any machine
        """Begin a cell on whichever machine is free."""
        plan, folder, num_threads = self._arguments
        return self._task.remote(plan, key, folder, num_threads).future()

    def result(self, worker: int, future: Future[str | None]) -> str | None:  # noqa: ARG002
        """Return the result of a finished cell."""
        try:
            return future.result()
        except self._ray.exceptions.RayTaskError as error:
            raise DataError(f"a task of the cluster failed: {error}") from error
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError from error

    def progress(self, worker: int) -> float:  # noqa: ARG002 - of the protocol
        """Ray reports none."""
        return 0.0

    def interrupt(self) -> None:
        """Nothing reaches the machines; their cells continue from their last checkpoints."""

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"--engine ray needs Ray, which is not installed: {install_line('ray')}; or leave "
            "--engine out to train on this machine alone."
        ) from error
    return ray
