"""Trains the cells of a comparison side by side, in processes or on a Ray cluster.

Each worker trains one cell at a time with its own threads. When a worker is lost (killed, out
of memory), its cell is run again and continues from its checkpoint. The result of a cell does not
depend on how many run at the same time.

The machines of a Ray cluster need no common folder: a task gets its data and its last checkpoint,
and returns the files that it wrote.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from rich.console import Console

from suffice.comparison.answers import Key
from suffice.comparison.plan import CELLS, Plan
from suffice.comparison.training import CellFiles, train_cell
from suffice.data import Dataset, load
from suffice.errors import (
    ConfigError,
    DataError,
    StateError,
    SufficeError,
    check_known,
    installed_for,
)
from suffice.utils.files import write_atomic
from suffice.utils.machine import software_versions
from suffice.utils.progress import Progress, Silent, Workers, show, workers
from suffice.utils.torch_compat import MAX_THREADS
from suffice.utils.torch_compat import threads as torch_threads

ENGINES = ("local", "ray")
MAX_LOSSES = 3  # of workers with the same cell, before that cell is given up
GRACE = 20.0  # seconds a worker has to write its checkpoint after Ctrl-C
POLL = 0.2  # seconds between two looks at the workers


def cell_name(key: Key) -> str:
    """Name a cell in a message.

    Example:
        >>> cell_name(("efficient", 4, 0))
        'efficient heads 4 seed 0'
    """
    mechanism, heads, seed = key
    return f"{mechanism} heads {heads} seed {seed}"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of a run of cells; only the number of threads can change a result."""

    jobs: int | None = None  # at a time; None: 1 on this machine, all that fit into a cluster
    threads: int = 1  # of each
    minutes: float | None = None  # after which no cell is begun
    engine: str = "local"  # processes of this machine, or "ray"
    address: str | None = None  # HOST:PORT of the cluster; "auto" (None): this machine's; "local"
    quiet: bool = False  # show no progress

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: give at least 1.")
        if self.threads > MAX_THREADS:
            raise ConfigError(f"--threads {self.threads}: give at most {MAX_THREADS:,}.")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--max-minutes {self.minutes:g}: give a time above 0.")
        check_known("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise ConfigError("--address names a cluster; give it with --engine ray.")
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"--address {self.address}: run the command on a machine of the cluster, with "
                "HOST:PORT as `ray start` printed it, or without --address."
            )

    @classmethod
    def of(cls, *, jobs: int | None, threads: int | None, **options: Any) -> Self | None:
        """Return how a comparison is run; None for one training after another in this process.

        By default trainings side by side share the threads that this process would take; on a
        cluster each has one.
        """
        chosen = cls(jobs=jobs, threads=1 if threads is None else threads, **options)
        if threads is not None or chosen.engine != "local":
            return chosen
        count = chosen.jobs or 1
        return None if count == 1 else replace(chosen, threads=max(1, torch_threads() // count))

    @property
    def alone(self) -> bool:
        """Whether no other cell is trained on the machine at the same time."""
        return self.engine == "local" and (self.jobs or 1) == 1

    @property
    def facts(self) -> dict[str, object]:
        """Return facts of the trainings, over those of the machine that began them."""
        where = {} if self.engine == "local" else {"trainings": "on machines of a Ray cluster"}
        return {"threads": self.threads, **where}


class Job(Protocol):
    """One training, which may be sent to a worker."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...  # "cpu" or "cuda"
    def data(self) -> Any: ...  # None if the training reads its data itself
    def checkpoint(self, folder: Path) -> Path | None: ...  # an interrupted training continues it
    def run(self, data: Any, folder: Path, progress: Progress) -> None: ...  # writes the cell last


@dataclass(frozen=True)
class CellJob:
    plan: Plan
    key: Key
    alone: bool = False  # whether no other cell is trained on the machine at the same time
    rate: float | None = None  # of learning; None for the recipe's

    @property
    def name(self) -> str:
        return cell_name(self.key)

    @property
    def device(self) -> str:
        return self.plan.device

    def data(self) -> Dataset:
        return dataset_of(self.plan.recipe.task, tuple(self.plan.data_options(self.key[2]).items()))

    def checkpoint(self, folder: Path) -> Path:
        return CellFiles.of(folder, *self.key).checkpoint

    def run(self, data: Dataset, folder: Path, progress: Progress) -> None:
        how = {"rate": self.rate, "alone": self.alone}
        train_cell(self.plan, self.key, data, folder, progress, **how)


@lru_cache(maxsize=1)
def dataset_of(task: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    return load(task, **dict(options))


class WorkerLostError(Exception):
    """The process or machine that trained a cell is gone."""


@dataclass(frozen=True)
class Outcome:
    failure: str | None  # reason; None: trained
    seconds: float


INTERRUPTED = Outcome("interrupted; the checkpoint was written.", 0.0)


class Engine(Protocol):
    """Processes that train."""

    jobs: int  # at a time

    def submit(self, worker: int, job: Job) -> Future[Any]: ...
    def result(self, worker: int, future: Future[Any]) -> Outcome:
        """Return what became of it, with its files in the folder; raises WorkerLostError."""

    def progress(self, worker: int) -> float: ...  # share of its training
    def interrupt(self) -> None: ...  # running trainings write their checkpoints and end
    def close(self) -> None: ...


@dataclass
class Pool:
    """Workers that train side by side."""

    engine: Engine
    display: Workers
    seconds: float = field(default=0.0, init=False)  # of all trainings together
    elapsed: float = field(default=0.0, init=False)  # from the first's start to the last's end
    _began: float = field(default=math.inf, init=False)

    def train(
        self,
        jobs: Sequence[J],
        finish: Callable[[J], None] | None = None,
        *,
        deadline: float | None = None,
    ) -> list[J]:
        """Keep all workers busy until no training is left, and return those that are finished.

        A training whose worker is lost is run again. None is begun after one that fails, or after
        the deadline, a monotonic time.
        """
        waiting, free = deque(jobs), deque(range(self.engine.jobs))
        finished: list[J] = []
        running: dict[Future[Any], tuple[int, J]] = {}
        losses: Counter[str] = Counter()
        failure: Exception | None = None
        try:
            while True:
                while waiting and free and failure is None and not _is_over(deadline):
                    worker, job = free.popleft(), waiting.popleft()
                    running[self.engine.submit(worker, job)] = worker, job
                    self.display.begin(worker, job.name)
                if not running:
                    break
                done, _ = wait(running, timeout=POLL, return_when=FIRST_COMPLETED)
                for worker, _job in running.values():
                    self.display.update(worker, self.engine.progress(worker))
                for future in done:
                    worker, job = running.pop(future)
                    free.append(worker)
                    error = self._error_of(worker, future)
                    self.display.end(worker, finished=error is None)
                    if error is None:
                        finished.append(job)
                        (finish or self._print)(job)
                    elif isinstance(error, WorkerLostError) and losses[job.name] + 1 < MAX_LOSSES:
                        losses[job.name] += 1
                        waiting.appendleft(job)
                        self.display.tell(f"the worker of {job.name} was lost; it is run again")
                    else:
                        failure = failure or _final(error, job)
        except KeyboardInterrupt:
            self._interrupt(running)
            raise
        if failure is not None:
            raise failure
        return finished

    def _error_of(self, worker: int, future: Future[Any]) -> Exception | None:
        try:
            outcome = self.engine.result(worker, future)
        except Exception as error:  # noqa: BLE001 - raised when the other cells are done
            return error
        now = time.monotonic()
        self.seconds += outcome.seconds
        self._began = min(self._began, now - outcome.seconds)
        self.elapsed = now - self._began
        return None if outcome.failure is None else DataError(outcome.failure)

    def _interrupt(self, running: dict[Future[Any], tuple[int, Any]]) -> None:
        self.engine.interrupt()
        for future in wait(running, timeout=GRACE).done:
            self._error_of(running[future][0], future)  # its checkpoint may come with it

    def _print(self, job: Job) -> None:
        self.display.finish(f"{job.name} finished")


J = TypeVar("J", bound=Job)


def _final(error: Exception, job: Job) -> Exception:
    if not isinstance(error, WorkerLostError):
        return error
    return StateError(
        f"{MAX_LOSSES} workers were lost while they trained {job.name}; if they printed no error, "
        "is there enough memory for that many jobs at a time?"
    )


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def train_one(
    job: Job, folder: Path, num_threads: int, progress: Progress | None = None, data: Any = None
) -> Outcome:
    torch_threads(num_threads)
    start, failure = time.monotonic(), None
    try:
        job.run(job.data() if data is None else data, folder, progress or Silent())
    except SufficeError as error:
        failure = str(error)
    return Outcome(failure, time.monotonic() - start)


class LocalProcesses:
    """One process for each worker, replaced when it is lost."""

    # every worker is a pool: a pool that loses a process ends all of its processes

    def __init__(self, folder: Path, options: Execution) -> None:
        self._arguments = folder.absolute(), options.threads
        self.jobs = options.jobs or 1
        self._context = multiprocessing.get_context("spawn")
        self._shares = self._context.RawArray("d", self.jobs)
        self._process_ids = self._context.RawArray("q", self.jobs)  # of busy workers, else 0
        self._stopped = self._context.RawValue("b", 0)
        self._pools: dict[int, ProcessPoolExecutor] = {}

    def submit(self, worker: int, job: Job) -> Future[Outcome]:
        self._shares[worker] = 0.0
        if worker not in self._pools:
            self._pools[worker] = ProcessPoolExecutor(
                max_workers=1,
                mp_context=self._context,
                initializer=_begin_worker,
                initargs=(worker, self._shares, self._process_ids, self._stopped),
            )
        with _inherited_by_workers(self._arguments[1]):
            try:
                return self._pools[worker].submit(_train_in_worker, job, *self._arguments)
            except BrokenProcessPool as error:  # its process was lost between two cells
                future: Future[Outcome] = Future()
                future.set_exception(error)
                return future

    def result(self, worker: int, future: Future[Outcome]) -> Outcome:
        try:
            return future.result()
        except BrokenProcessPool as error:
            self._process_ids[worker] = 0
            self._pools.pop(worker).shutdown(wait=False)
            raise WorkerLostError from error

    def progress(self, worker: int) -> float:
        return self._shares[worker]

    def interrupt(self) -> None:
        """Send Ctrl-C to each busy worker, once: a second one would cost the checkpoint."""
        self._stopped.value = 1
        self._signal(signal.SIGINT)

    def close(self) -> None:
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


class _Worker(Silent):
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

    def step(self, done: int, total: int) -> None:
        self._shares[self._number] = done / total


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


def _train_in_worker(job: Job, folder: Path, num_threads: int) -> Outcome:
    try:
        with _worker.busy():
            return train_one(job, folder, num_threads, _worker)
    except KeyboardInterrupt:
        return INTERRUPTED


SAME = ("suffice", "torch")  # packages of which every machine has the same version

Files = dict[str, bytes]  # content by path within the folder


class RayTasks:
    """One task of a Ray cluster for each training; the caller's connection stays open."""

    def __init__(self, folder: Path, options: Execution) -> None:
        otherwise = "; or leave --engine out to train on this machine alone"
        with installed_for("--engine ray", "ray", otherwise):
            import ray
        self._ray, self._folder, self._threads = ray, folder, options.threads
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(options)
        elif options.address is not None:
            raise ConfigError(
                f"this program is connected to a Ray cluster already; leave the address "
                f"{options.address!r} out."
            )
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(int(node.get("CPU", 0) // options.threads) for node in nodes)
        if not room:
            self._leave()
            raise ConfigError(
                f"no machine of the cluster has {options.threads} processors for the threads of "
                "one training; give fewer threads."
            )
        self.jobs = options.jobs or room
        # a lost machine is handled by the pool, not repeated unseen
        self._task = ray.remote(max_retries=0)(_train_in_task)
        self._data: tuple[Any, Any] = (None, None)  # what was sent last, and the reference to it
        self._running: dict[int, tuple[Any, Path | None]] = {}  # reference and checkpoint by worker

    def _connect(self, options: Execution) -> None:
        address = options.address or "auto"
        place: dict[str, Any] = {"address": address}
        if address == "local":
            processors = options.jobs * options.threads if options.jobs else os.cpu_count()
            place |= {"num_cpus": processors, "include_dashboard": False}
        try:
            self._ray.init(**place, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`, or "
                "give --address local."
            ) from error

    def submit(self, worker: int, job: Job) -> Future[tuple[Outcome, Files]]:
        data = job.data()
        if data is not self._data[0]:
            self._data = data, self._ray.put(data)
        checkpoint = job.checkpoint(self._folder)
        files = {} if checkpoint is None else _read(self._folder, [checkpoint])
        options = {"num_cpus": self._threads, "num_gpus": int(job.device == "cuda")}
        reference = self._task.options(**options).remote(
            job, self._data[1], files, self._threads, _versions()
        )
        self._running[worker] = reference, checkpoint
        return reference.future()

    def result(self, worker: int, future: Future[tuple[Outcome, Files]]) -> Outcome:
        _, checkpoint = self._running.pop(worker)
        try:
            outcome, files = future.result()
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError from error
        for name in sorted(files, key=lambda name: name.startswith(f"{CELLS}/")):
            write_atomic(self._folder / name, files[name])
        if outcome.failure is None and checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return outcome

    def progress(self, worker: int) -> float:  # noqa: ARG002 - of an engine
        return 0.0  # a task says nothing before it returns

    def interrupt(self) -> None:
        """Let running trainings return their checkpoints; those that wait for room are dropped."""
        for reference, _ in self._running.values():
            self._ray.cancel(reference)

    def close(self) -> None:
        for reference, _ in self._running.values():
            self._ray.cancel(reference, force=True)
        self._leave()

    def _leave(self) -> None:
        if self._connected:
            self._ray.shutdown()


def _train_in_task(
    job: Job, data: Any, files: Files, num_threads: int, versions: dict[str, object]
) -> tuple[Outcome, Files]:
    if _versions() != versions:
        reason = f"a machine of the cluster has {_versions()}, and this one {versions}"
        return Outcome(f"{reason}; install the same versions on all.", 0.0), {}
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C comes by `cancel`
    with tempfile.TemporaryDirectory(prefix="suffice-") as name:
        folder = Path(name)
        try:
            for file, content in files.items():
                write_atomic(folder / file, content)
            outcome = train_one(job, folder, num_threads, data=data)
        except KeyboardInterrupt:
            outcome = INTERRUPTED
        finally:
            signal.signal(signal.SIGINT, handler)
        return outcome, _read(folder, [path for path in folder.rglob("*") if path.is_file()])


def _versions() -> dict[str, object]:
    return {name: version for name, version in software_versions().items() if name in SAME}


def _read(folder: Path, paths: list[Path]) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.exists()
    }


@contextlib.contextmanager
def pool(folder: Path, options: Execution, *, console: Console, **shown: Any) -> Iterator[Pool]:
    """Yield workers that train for a folder, and say if one alone would have been faster."""
    make = RayTasks if options.engine == "ray" else LocalProcesses
    with workers(console, quiet=options.quiet, **shown) as display:
        engine: Engine = make(folder, options)
        cores = os.cpu_count() or 1
        if make is LocalProcesses and engine.jobs > 1 and engine.jobs * options.threads > cores:
            display.tell(
                f"{engine.jobs} cells x {options.threads} threads on {cores} processors wait for "
                f"each other; {max(1, cores // options.threads)} at a time are as fast"
            )
        try:
            yield (working := Pool(engine, display))
        finally:
            engine.close()
    if engine.jobs > 1 and 0.0 < working.seconds < working.elapsed:
        display.tell(
            f"{engine.jobs} at a time took {working.elapsed:.0f} s after their start, and the "
            f"trainings themselves {working.seconds:.0f} s: one after the other is faster"
        )


Finish = Callable[[Any, Callable[[str], None]], None]
"""Takes a job that is trained, and what shows the line about it."""


@contextlib.contextmanager
def trainer(
    folder: Path,
    options: Execution | None,
    *,
    console: Console,
    quiet: bool,
    data: Callable[[Any], Any] = lambda job: job.data(),
    **shown: Any,
) -> Iterator[Callable[[Sequence[Job], Finish], None]]:
    """Yield train(jobs, finish): one after the other in this process, or as the options say.

    `data` returns what a job is trained on in this process; workers load it themselves.
    """
    if options is None:
        with show(console, quiet=quiet, **shown) as progress:

            def train(jobs: Sequence[Job], finish: Finish) -> None:
                for job in jobs:
                    job.run(data(job), folder, progress)
                    finish(job, progress.finish)

            yield train
        return
    with pool(folder, replace(options, quiet=quiet), console=console, **shown) as working:
        tell = working.display.finish
        yield lambda jobs, finish: working.train(jobs, lambda job: finish(job, tell))
