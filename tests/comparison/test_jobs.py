"""Cells trained side by side, in processes and on a cluster."""

from __future__ import annotations

import io
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from suffice.comparison import jobs as module
from suffice.comparison.jobs import (
    CellJob,
    Execution,
    LocalProcesses,
    Outcome,
    Pool,
    WorkerLostError,
    pool,
    train_one,
)
from suffice.comparison.plan import Plan
from suffice.comparison.results import cell_path, read_cell
from suffice.comparison.training import train_cell
from suffice.data import load
from suffice.errors import ConfigError, DataError, StateError
from suffice.train import Silent
from suffice.train.recipes import RECIPES
from suffice.utils.torch_compat import threads

from .conftest import RecordingDisplay, quick, timeless

ONE, TWO = ("standard", 4, 0), ("efficient", 4, 0)


def read(plan, folder):
    return timeless(read_cell(folder, *key) for key in plan.cells)


def running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# The loop, with an engine whose cells end as the test says.


class ScriptedEngine:
    """Cells end at once: "lost", an error, a reason, or None = trained."""

    def __init__(self, *results, jobs=1):
        self.results, self.submitted, self.jobs = list(results), [], jobs
        self.interrupted = 0

    def submit(self, worker, job):
        self.submitted.append((worker, job.key))
        future = Future()
        result = self.results.pop(0) if self.results else None
        if result != "never":
            future.set_result(result)
        return future

    def result(self, worker, future):
        result = future.result()
        if result == "lost":
            raise WorkerLostError
        if isinstance(result, Exception):
            raise result
        return Outcome(result, 1.0)

    def progress(self, worker):
        return 0.5

    def interrupt(self):
        self.interrupted += 1


def scripted(*results, keys=(ONE, TWO), jobs=1, deadline=None):
    engine, display = ScriptedEngine(*results, jobs=jobs), RecordingDisplay()
    cells = [CellJob(None, key) for key in keys]
    finished = Pool(engine, display).train(cells, deadline=deadline)
    return [job.key for job in finished], engine, display


def test_the_start_of_a_cluster_is_no_time_of_trainings(monkeypatch):
    """30 s pass until a worker has begun; then a training takes one second."""
    clock = iter([130.0, 130.5])
    pool = Pool(ScriptedEngine(jobs=2), RecordingDisplay())
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    pool.train([CellJob(None, ONE), CellJob(None, TWO)])
    assert (pool.seconds, pool.elapsed) == (2.0, 1.5)


def test_a_lost_worker_gives_its_cell_back():
    finished, engine, display = scripted("lost", None, None)
    assert finished == [ONE, TWO]
    assert [key for _, key in engine.submitted] == [ONE, ONE, TWO]
    [line] = display.told
    assert "standard heads 4 seed 0" in line


def test_a_cell_that_loses_every_worker_is_given_up():
    with pytest.raises(StateError, match="standard heads 4 seed 0"):
        scripted("lost", "lost", "lost")


@pytest.mark.parametrize("failure", ["no room.", DataError("no room.")])
def test_after_a_failure_running_cells_end_and_no_other_begins(failure):
    engine, display = ScriptedEngine(failure, None, jobs=2), RecordingDisplay()
    cells = [CellJob(None, key) for key in (ONE, TWO, ("optimised", 4, 0))]
    with pytest.raises(DataError, match="no room"):
        Pool(engine, display).train(cells)
    assert [key for _, key in engine.submitted] == [ONE, TWO]
    assert display.ended == 1


def test_no_cell_begins_after_the_deadline():
    finished, engine, _ = scripted(deadline=time.monotonic())
    assert finished == engine.submitted == []


def test_ctrl_c_interrupts_the_engine_once(monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.0)
    engine, display = ScriptedEngine("never"), RecordingDisplay()

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(display, "update", press)
    with pytest.raises(KeyboardInterrupt):
        Pool(engine, display).train([CellJob(None, ONE)])
    assert engine.interrupted == 1


def test_what_interrupted_cells_leave_is_taken_over(monkeypatch):
    engine, display = ScriptedEngine(None, "interrupted.", jobs=2), RecordingDisplay()
    taken = []
    result = engine.result
    monkeypatch.setattr(engine, "result", lambda *a: taken.append(a[0]) or result(*a))

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(display, "update", press)
    with pytest.raises(KeyboardInterrupt):
        Pool(engine, display).train([CellJob(None, key) for key in (ONE, TWO)])
    assert sorted(taken) == [0, 1]


def printed(tmp_path, monkeypatch, *, jobs, cores, seconds):
    """What is said of a run whose trainings took so many seconds."""
    monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
    console = Console(file=io.StringIO(), width=200)
    with pool(tmp_path, Execution(jobs=jobs), console=console, cells=4) as workers:
        workers.seconds = seconds
        workers.elapsed = 1.0
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("jobs", "cores", "seconds", "words"),
    [
        (2, 2, 1e-9, ["one after the other"]),
        (2, 2, 1e9, []),
        (1, 2, 1e-9, []),
        (4, 2, 1e9, ["4 cells x 1 threads on 2", "2 at a time"]),
    ],
)
def test_trainings_that_are_slower_side_by_side_are_named(
    tmp_path, monkeypatch, jobs, cores, seconds, words
):
    text = printed(tmp_path, monkeypatch, jobs=jobs, cores=cores, seconds=seconds)
    assert all(word in text for word in words)
    assert bool(text) == bool(words)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"jobs": 1}, None),
        ({"jobs": 2}, (2, 4, "local")),
        ({"jobs": 16}, (16, 1, "local")),
        ({"threads": 3}, (None, 3, "local")),
        ({"engine": "ray"}, (None, 1, "ray")),
        ({"engine": "ray", "jobs": 2, "threads": 3}, (2, 3, "ray")),
    ],
)
def test_trainings_side_by_side_share_the_threads(monkeypatch, options, expected):
    monkeypatch.setattr(module, "torch_threads", lambda: 8)
    means = Execution.of(**{"jobs": None, "threads": None, **options})
    assert (means and (means.jobs, means.threads, means.engine)) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("jobs", 0),
        ("threads", 0),
        ("minutes", 0.0),
        ("engine", "slurm"),
        ("address", "auto"),
        ("address", "ray://head:10001"),
    ],
)
def test_options_that_are_not_legal_are_refused(field, value):
    engine = {"engine": "ray"} if str(value).startswith("ray:") else {}
    with pytest.raises(ConfigError):
        Execution(**engine, **{field: value})


# One cell in this process.


@pytest.fixture(autouse=True)
def threads_as_before():
    before = threads()
    yield
    threads(before)


def test_a_cell_is_trained_with_its_threads(plan, tmp_path):
    assert train_one(CellJob(plan, ONE), tmp_path, 1).failure is None
    assert threads() == 1
    assert read_cell(tmp_path, *ONE).num_heads == 4


def test_a_full_disk_is_a_reason_and_leaves_no_half_written_file(plan, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        reason = train_one(CellJob(plan, ONE), tmp_path, 1).failure
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write" in reason
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_can_be_sent_to_a_worker(name):
    made = RECIPES[name]()
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own


# Processes.


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The cells trained one after the other in this process, with one thread."""
    plan = Plan(
        recipe=quick(),
        mechanisms=("standard", "efficient"),
        heads=(4,),
        seeds=1,
        baseline="standard",
    )
    folder, before = tmp_path_factory.mktemp("alone"), threads()
    threads(1)
    cells = [train_cell(plan, key, load("digits"), folder, Silent()) for key in plan.cells]
    threads(before)
    return timeless(cells)


def test_a_killed_worker_gives_its_cell_back_and_results_equal_those_of_one_process(
    plan, tmp_path, alone
):
    engine, killed = LocalProcesses(tmp_path, Execution(jobs=2)), []

    class Killing(RecordingDisplay):
        def update(self, worker, share):
            process = engine._process_ids[worker]
            if share and process and not killed:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    display = Killing()
    with closing(engine):
        finished = Pool(engine, display).train([CellJob(plan, key) for key in plan.cells])
    assert sorted(job.key for job in finished) == sorted(plan.cells)
    assert len(killed) == len(display.told) == 1
    assert read(plan, tmp_path) == alone


def test_ctrl_c_writes_the_checkpoint_of_a_running_cell(plan, tmp_path):
    long = replace(plan, recipe=quick(epochs=1000))

    class Pressing(RecordingDisplay):
        def update(self, worker, share):
            if share:
                raise KeyboardInterrupt

    engine = LocalProcesses(tmp_path, Execution())
    with closing(engine), pytest.raises(KeyboardInterrupt):
        Pool(engine, Pressing()).train([CellJob(long, ONE)])
    assert (tmp_path / "checkpoints" / "standard-h4-s0.safetensors").exists()
    assert not cell_path(tmp_path, *ONE).exists()


def test_a_killed_parent_takes_its_worker_along(tmp_path):
    code = f"""
    from pathlib import Path
    from suffice.comparison.plan import Plan
    from suffice.comparison.jobs import CellJob, Execution, LocalProcesses, Pool
    from tests.comparison.conftest import RecordingDisplay, quick

    plan = Plan(
        recipe=quick(epochs=1000), mechanisms=("standard",), heads=(4,), seeds=1,
        baseline="standard",
    )
    engine = LocalProcesses(Path({str(tmp_path)!r}), Execution())

    class Printing(RecordingDisplay):
        def update(self, worker, share):
            if share:
                print(engine._process_ids[worker], flush=True)

    if __name__ == "__main__":
        Pool(engine, Printing()).train([CellJob(plan, key) for key in plan.cells])
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    worker_id = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        if not running(worker_id):
            break
        time.sleep(0.05)
    assert not running(worker_id)
