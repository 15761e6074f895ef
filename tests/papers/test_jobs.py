"""Cells trained side by side, in processes and on a cluster."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest

from suffice.data import load
from suffice.errors import ConfigError, DataError, StateError
from suffice.measure import jobs as module
from suffice.measure.jobs import (
    Execution,
    LocalProcesses,
    RayTasks,
    WorkerLostError,
    train_cells,
    train_one,
)
from suffice.measure.plan import Plan
from suffice.measure.results import cell_path, read_cell
from suffice.measure.training import train_cell
from suffice.recipes import RECIPES
from suffice.train import Silent, current
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

    def __init__(self, *results):
        self.results, self.submitted, self.closed = list(results), [], False
        self.interrupted = 0

    def submit(self, worker, key):
        self.submitted.append((worker, key))
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
        return result

    def progress(self, worker):
        return 0.5

    def interrupt(self):
        self.interrupted += 1

    def close(self):
        self.closed = True


def scripted(*results, keys=(ONE, TWO), jobs=1, deadline=None):
    engine, display = ScriptedEngine(*results), RecordingDisplay()
    try:
        finished = train_cells(engine, list(keys), display, jobs=jobs, deadline=deadline)
    finally:
        assert engine.closed
    return finished, engine, display


def test_every_cell_is_submitted_once():
    finished, engine, display = scripted(jobs=2)
    assert sorted(finished) == sorted([ONE, TWO])
    assert engine.submitted == [(0, ONE), (1, TWO)]
    assert sorted(display.ended) == ["efficient heads 4 seed 0", "standard heads 4 seed 0"]


def test_a_lost_worker_gives_its_cell_back():
    finished, engine, display = scripted("lost", None, None)
    assert finished == [ONE, TWO]
    assert [key for _, key in engine.submitted] == [ONE, ONE, TWO]
    assert display.lost_cells == ["standard heads 4 seed 0"]


def test_a_cell_that_loses_every_worker_is_given_up():
    with pytest.raises(StateError, match="standard heads 4 seed 0"):
        scripted("lost", "lost", "lost")


@pytest.mark.parametrize("failure", ["no room.", DataError("no room.")])
def test_after_a_failure_running_cells_end_and_no_other_begins(failure):
    engine, display = ScriptedEngine(failure, None), RecordingDisplay()
    keys = [ONE, TWO, ("optimised", 4, 0)]
    with pytest.raises(DataError, match="no room"):
        train_cells(engine, keys, display, jobs=2, deadline=None)
    assert [key for _, key in engine.submitted] == [ONE, TWO]
    assert display.ended == ["efficient heads 4 seed 0"]


def test_no_cell_begins_after_the_deadline():
    finished, engine, _ = scripted(deadline=time.monotonic())
    assert finished == engine.submitted == []


def test_ctrl_c_interrupts_the_engine_once(monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.0)
    engine, display = ScriptedEngine("never"), RecordingDisplay()

    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(display, "step", press)
    with pytest.raises(KeyboardInterrupt):
        train_cells(engine, [ONE], display, jobs=1, deadline=None)
    assert (engine.interrupted, engine.closed) == (1, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("jobs", 0), ("threads", 0), ("minutes", 0.0), ("engine", "slurm"), ("address", "auto")],
)
def test_options_that_are_not_legal_are_refused(field, value):
    with pytest.raises(ConfigError):
        Execution(**{field: value})


# One cell in this process.


@pytest.fixture(autouse=True)
def threads_as_before():
    before = threads()
    yield
    threads(before)


def test_a_cell_is_trained_with_its_threads(plan, tmp_path):
    assert train_one(plan, ONE, tmp_path, 1) is None
    assert threads() == 1
    assert read_cell(tmp_path, *ONE).num_heads == 4


def test_a_full_disk_is_a_reason_and_leaves_no_half_written_file(plan, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        reason = train_one(plan, ONE, tmp_path, 1)
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
    cells = [
        train_cell(plan, key, load("digits"), folder, current(), Silent()) for key in plan.cells
    ]
    threads(before)
    return timeless(cells)


def test_a_killed_worker_gives_its_cell_back_and_results_equal_those_of_one_process(
    plan, tmp_path, alone
):
    engine, display, killed = LocalProcesses(plan, tmp_path, Execution(jobs=2)), None, []

    class Killing(RecordingDisplay):
        def step(self, worker, done, total):
            process = engine._process_ids[worker]
            if done and process and not killed:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    display = Killing()
    finished = train_cells(engine, plan.cells, display, jobs=2, deadline=None)
    assert sorted(finished) == sorted(plan.cells)
    assert len(killed) == len(display.lost_cells) == 1
    assert read(plan, tmp_path) == alone


def test_ctrl_c_writes_the_checkpoint_of_a_running_cell(plan, tmp_path):
    long = replace(plan, recipe=quick(epochs=1000))
    engine = LocalProcesses(long, tmp_path, Execution())

    class Pressing(RecordingDisplay):
        def step(self, worker, done, total):
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_cells(engine, [ONE], Pressing(), jobs=1, deadline=None)
    assert (tmp_path / "checkpoints" / "standard-h4-s0.safetensors").exists()
    assert not cell_path(tmp_path, *ONE).exists()


def test_a_killed_parent_takes_its_worker_along(tmp_path):
    code = f"""
    from pathlib import Path
    from suffice.measure.plan import Plan
    from suffice.measure.jobs import Execution, LocalProcesses, train_cells
    from tests.papers.conftest import RecordingDisplay, quick

    plan = Plan(
        recipe=quick(epochs=1000), mechanisms=("standard",), heads=(4,), seeds=1,
        baseline="standard",
    )
    engine = LocalProcesses(plan, Path({str(tmp_path)!r}), Execution())

    class Printing(RecordingDisplay):
        def step(self, worker, done, total):
            if done:
                print(engine._process_ids[worker], flush=True)

    if __name__ == "__main__":
        train_cells(engine, plan.cells, Printing(), jobs=1, deadline=None)
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


# A cluster, which a class stands in for.


class Lost(Exception):
    """As Ray reports a machine that is gone."""


class Failed(Lost):
    """As Ray reports a task that raised."""


class Cluster:
    """Ray with one machine, this one; the results of its tasks are scripted."""

    class exceptions:
        RayError = Lost
        RayTaskError = Failed

    def __init__(self, *results):
        self.results, self.down = list(results), False

    def init(self, **options):
        self.options = options

    def shutdown(self):
        self.down = True

    def remote(self, **options):
        self.task_options = options
        return lambda function: Task(self)


class Task:
    def __init__(self, cluster):
        self.cluster = cluster

    def remote(self, plan, key, folder, num_threads):
        assert folder.is_absolute()
        return self

    def future(self):
        future, result = Future(), self.cluster.results.pop(0)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return future


def on_ray(plan, folder, cluster, monkeypatch, address="local"):
    monkeypatch.setattr(module, "_import_ray", lambda: cluster)
    options = Execution(jobs=2, engine="ray", address=address)
    engine, display = RayTasks(plan, folder, options), RecordingDisplay()
    return train_cells(engine, plan.cells, display, jobs=2, deadline=None), display


def test_a_lost_machine_of_a_cluster_gives_its_cell_back(plan, tmp_path, monkeypatch):
    cluster = Cluster(Lost(), None, None)
    finished, display = on_ray(plan, tmp_path, cluster, monkeypatch)
    assert sorted(finished) == sorted(plan.cells)
    assert len(display.lost_cells) == 1
    assert cluster.options["num_cpus"] == 2
    assert cluster.task_options == {"num_cpus": 1, "max_retries": 0, "max_calls": 1}
    assert cluster.down


@pytest.mark.parametrize("result", ["no room.", Failed("no room.")])
def test_a_failure_on_a_cluster_is_reported(plan, tmp_path, monkeypatch, result):
    with pytest.raises(DataError, match="no room."):
        on_ray(plan, tmp_path, Cluster(result, None), monkeypatch)


def test_an_absent_cluster_is_reported(plan, tmp_path, monkeypatch):
    cluster = Cluster()

    def init(**options):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(cluster, "init", init)
    with pytest.raises(ConfigError, match="'auto'"):
        on_ray(plan, tmp_path, cluster, monkeypatch, address=None)


def test_ray_is_named_where_it_is_not_installed(plan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"\[ray\]"):
        RayTasks(plan, tmp_path, Execution(engine="ray"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_local_cluster_of_two_finds_what_one_process_finds(plan, tmp_path, alone):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    options = Execution(jobs=2, engine="ray", address="local")
    engine = RayTasks(plan, tmp_path, options)
    finished = train_cells(engine, plan.cells, RecordingDisplay(), jobs=2, deadline=None)
    assert sorted(finished) == sorted(plan.cells)
    assert read(plan, tmp_path) == alone
