"""Trainings as tasks of a Ray cluster, whose machines need no common folder.

A task gets its data and its last checkpoint, and returns the files that it wrote.
"""

from __future__ import annotations

import os
import signal
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError, installed_for
from suffice.measure.jobs import INTERRUPTED, Execution, Job, Outcome, WorkerLostError, train_one
from suffice.measure.machine import software_versions
from suffice.measure.plan import CELLS
from suffice.utils.files import write_atomic

SAME = ("suffice", "torch")  # packages of which every machine has the same version

Files = dict[str, bytes]  # content by path within the folder


class RayTasks:
    """One task of a Ray cluster for each training.

    A connection that the caller made by `ray.init`, with a runtime environment perhaps, is used and
    left open.
    """

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
        """Return what became of a training, whose files are then in the folder."""
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
        """Return nothing done: a task says nothing before it returns."""
        return 0.0

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
