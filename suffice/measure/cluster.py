"""Trainings as tasks of a Ray cluster, whose machines need no common folder.

A task gets its data and its last checkpoint, and returns the files that it wrote. A small actor on
the caller's machine passes progress one way and Ctrl-C the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError, installed_for
from suffice.measure.jobs import INTERRUPTED, Execution, Job, Outcome, WorkerLostError, train_one
from suffice.measure.machine import software_versions
from suffice.measure.plan import CELLS
from suffice.utils.files import write_atomic
from suffice.utils.progress import Silent

REPORT = 1.0  # seconds between two reports of a worker
PATIENCE = 5.0  # seconds in which the board answers
SAME = ("suffice", "torch")  # packages of which every machine has the same version

Files = dict[str, bytes]  # content by path within the folder


class RayTasks:
    """One task of a Ray cluster for each training.

    A connection that the caller made by `ray.init`, with a runtime environment perhaps, is used and
    left open.
    """

    def __init__(self, folder: Path, options: Execution) -> None:
        self._ray = _import_ray()
        self._folder, self._threads = folder, options.threads
        self._connected = not self._ray.is_initialized()
        if self._connected:
            self._connect(options)
        elif options.address is not None:
            raise ConfigError(
                f"this program is connected to a Ray cluster already; leave the address "
                f"{options.address!r} out."
            )
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = [int(node.get("CPU", 0) // options.threads) for node in nodes]
        if not sum(room):
            self._leave()
            raise ConfigError(
                f"no machine of the cluster has {options.threads} processors for the threads of "
                "one training; give fewer threads."
            )
        self.jobs = options.jobs or sum(room)
        self._board = self._ray.remote(_Board).options(num_cpus=0, **self._here()).remote()
        # a lost machine is handled by the pool, not repeated unseen
        self._task = self._ray.remote(max_retries=0)(_train_in_task)
        self._data: tuple[Any, Any] = (None, None)  # what was sent last, and the reference to it
        self._running: dict[int, tuple[int, Any, Path | None]] = {}
        self._numbers = count()
        self._shares: dict[int, float] = {}  # by number of the task
        self._report: Future[dict[int, float]] | None = None

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

    def _here(self) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._ray.get_runtime_context().get_node_id()
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}

    def submit(self, worker: int, job: Job) -> Future[tuple[Outcome, Files]]:
        """Begin a training on whichever machine has room."""
        data = job.data()
        if data is not self._data[0]:
            self._data = data, self._ray.put(data)
        checkpoint, number = job.checkpoint(self._folder), next(self._numbers)
        files = {} if checkpoint is None else _read(self._folder, [checkpoint])
        options = {"num_cpus": self._threads, "num_gpus": int(job.device == "cuda")}
        reference = self._task.options(**options).remote(
            job, self._data[1], files, self._threads, number, self._board, _versions()
        )
        self._running[worker] = number, reference, checkpoint
        return reference.future()

    def result(self, worker: int, future: Future[tuple[Outcome, Files]]) -> Outcome:
        """Return what became of a training, whose files are then in the folder."""
        _, _, checkpoint = self._running.pop(worker)
        try:
            outcome, files = future.result()
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError from error
        _write(self._folder, files)
        if outcome.failure is None and checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return outcome

    def progress(self, worker: int) -> float:
        """Return the share of its training that a worker had done about a second ago."""
        if self._report is None or self._report.done():
            if self._report is not None and self._report.exception() is None:
                self._shares = self._report.result()
            self._report = self._board.read.remote().future()
        return self._shares.get(self._running[worker][0], 0.0)

    def interrupt(self) -> None:
        """Let running trainings return their checkpoints; those that wait for room are dropped."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            started = self._ray.get(self._board.stop.remote(), timeout=PATIENCE)
            for number, reference, _ in self._running.values():
                if number not in started:
                    self._ray.cancel(reference)

    def close(self) -> None:
        """End what still runs, and leave the cluster unless the caller had joined it."""
        for _, reference, _ in self._running.values():
            self._ray.cancel(reference, force=True)
        self._ray.kill(self._board)
        self._leave()

    def _leave(self) -> None:
        if self._connected:
            self._ray.shutdown()


class _Board:
    """Where trainings write how far they are, and read whether to stop."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}
        self._stopped = False

    def report(self, number: int, share: float) -> bool:
        """Note the share of a training that is done, and return whether it is to stop."""
        self._shares[number] = share
        return self._stopped

    def read(self) -> dict[int, float]:
        """Return the shares of all that have begun."""
        return self._shares

    def stop(self) -> dict[int, float]:
        """Stop all trainings at their next report."""
        self._stopped = True
        return self._shares


class _Reports(Silent):
    """Progress of a task, written to the board from a thread; Ctrl-C comes back on the same way."""

    def __init__(self, number: int, board: Any) -> None:
        self._number, self._board = number, board
        self._share = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def sent(self) -> Iterator[None]:
        """Report while the block runs."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            signal.signal(signal.SIGINT, before)

    def _send(self) -> None:
        answer: Any = None
        while True:
            # not awaited: a task that waits lends its processors to others
            if answer is None or answer.done():
                if answer is not None and answer.exception() is None and answer.result():
                    interrupt_main()  # a signal would not pass where Ray blocks it
                    return
                answer = self._board.report.remote(self._number, self._share).future()
            if self._ended.wait(REPORT):
                return

    def step(self, done: int, total: int) -> None:
        self._share = done / total


def _train_in_task(
    job: Job,
    data: Any,
    files: Files,
    num_threads: int,
    number: int,
    board: Any,
    versions: dict[str, object],
) -> tuple[Outcome, Files]:
    if _versions() != versions:
        reason = f"a machine of the cluster has {_versions()}, and this one {versions}"
        return Outcome(f"{reason}; install the same versions on all.", 0.0), {}
    reports = _Reports(number, board)
    with tempfile.TemporaryDirectory(prefix="suffice-") as name:
        folder = Path(name)
        _write(folder, files)
        try:
            with reports.sent():
                outcome = train_one(job, folder, num_threads, reports, data)
        except KeyboardInterrupt:
            outcome = INTERRUPTED
        return outcome, _read(folder, [path for path in folder.rglob("*") if path.is_file()])


def _versions() -> dict[str, object]:
    return {name: version for name, version in software_versions().items() if name in SAME}


def _read(folder: Path, paths: list[Path]) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.exists()
    }


def _write(folder: Path, files: Files) -> None:
    for name in sorted(files, key=lambda name: name.startswith(f"{CELLS}/")):
        write_atomic(folder / name, files[name])


def _import_ray() -> Any:
    otherwise = "; or leave --engine out to train on this machine alone"
    with installed_for("--engine ray", "ray", otherwise):
        import ray
    return ray
