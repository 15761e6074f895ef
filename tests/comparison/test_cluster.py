"""Comparisons on a Ray cluster of two machines, which are two of Ray's nodes on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import suffice
from suffice.comparison import jobs as module
from suffice.comparison import judge
from suffice.comparison.jobs import CellJob, Execution, Pool, RayTasks, pool, train_one
from suffice.comparison.results import cell_path, read_cell
from suffice.errors import ConfigError
from suffice.utils.torch_compat import threads

from .conftest import RecordingDisplay, quick
from .test_compare import fast, plan, run, timeless

__all__ = ["fast"]

ONE = ("standard", 4, 0)


def long(**changes):
    """A plan whose cells take some seconds."""
    return plan(recipe=quick(**changes), heads=(4,), seeds=1)


def test_ray_is_named_where_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"\[ray\]"):
        run(tmp_path, plan(), execution=Execution(engine="ray"))


def test_a_machine_with_other_versions_is_refused():
    versions = {"suffice": "0.0.1", "torch": torch.__version__}
    job = CellJob(plan(), ("standard", 2, 0))
    outcome, files = module._train_in_task(job, None, {}, 1, versions)
    assert "0.0.1" in outcome.failure
    assert files == {}


def on_ray(test):
    """Mark a test of a real cluster, which takes a minute and has warnings of its own."""
    return pytest.mark.slow(pytest.mark.filterwarnings("default")(test))


class Machines:
    """A cluster of this process, whose machines come and go."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.added = []

    @property
    def options(self):
        return {"engine": "ray", "address": self.cluster.address, "quiet": True}

    def add(self):
        self.added.append(self.cluster.add_node(num_cpus=1))
        self.cluster.wait_for_nodes()

    def kill(self):
        self.cluster.remove_node(self.added.pop(), allow_graceful=False)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_worker_niceness", "0")  # or a busy machine starves them
        machines = Machines()
        yield machines
        machines.cluster.shutdown()


@pytest.fixture
def machines(cluster):
    """Two machines with one processor each."""
    cluster.add()
    yield cluster
    while cluster.added:
        cluster.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The long cells trained by one process of this machine."""
    folder, given = tmp_path_factory.mktemp("alone"), long()
    with pool(folder, Execution(quiet=True), console=Console(), cells=2) as workers:
        workers.train([CellJob(given, key) for key in given.cells])
    return timeless(read_cell(folder, *key) for key in given.cells)


@pytest.fixture
def one_thread():
    """One thread for torch."""
    before = threads()
    threads(1)
    yield
    threads(before)


def in_training():
    """Folders of tasks that train; the machines are nodes on this one."""
    return list(Path(tempfile.gettempdir()).glob("suffice-*/checkpoints"))


def train_on(machines, folder, cells, display=None):
    engine = RayTasks(folder, Execution(**machines.options))
    try:
        return Pool(engine, display or RecordingDisplay()).train(cells)
    finally:
        engine.close()


@on_ray
def test_two_machines_find_what_one_finds(machines, tmp_path):
    """Seeds are added until a verdict is there, and all files are those of one machine."""
    given = plan(seeds=4, auto=True)
    one = Execution(threads=1, quiet=True)
    local, _ = run(tmp_path / "local", given, quiet=True, execution=one)
    remote, _ = run(tmp_path / "ray", given, quiet=True, execution=Execution(**machines.options))
    assert timeless(remote.cells) == timeless(local.cells)
    assert "Ray" in remote.machine["trainings"]
    verdicts = [judge(results) for results in (local, remote)]
    assert verdicts[0].outcome == verdicts[1].outcome
    [first], [second] = (verdict.comparisons for verdict in verdicts)
    assert (first.difference, first.sufficiency) == (second.difference, second.sufficiency)
    names = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        for folder in (tmp_path / "local", tmp_path / "ray")
    ]
    assert names[0] == names[1]


@on_ray
def test_a_machine_that_dies_costs_its_cell_and_nothing_else(machines, tmp_path, alone):
    class Killing(RecordingDisplay):
        def update(self, worker, share):
            if machines.added and len(in_training()) == 2:
                machines.kill()

    given, display = long(), Killing()
    finished = train_on(machines, tmp_path, [CellJob(given, k) for k in given.cells], display)
    assert sorted(job.key for job in finished) == sorted(given.cells)
    assert len(display.told) == 1
    assert timeless(read_cell(tmp_path, *key) for key in given.cells) == alone


@on_ray
@pytest.mark.usefixtures("one_thread")
def test_ctrl_c_brings_the_checkpoint_from_which_this_machine_goes_on(machines, tmp_path):
    class Pressing(RecordingDisplay):
        began = None

        def update(self, worker, share):
            if in_training():
                self.began = self.began or time.monotonic()
                if time.monotonic() > self.began + 1.0:  # in the midst of it
                    raise KeyboardInterrupt

    given = long(epochs=60)
    job, local = CellJob(given, ONE), tmp_path / "local"
    checkpoint = job.checkpoint(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_on(machines, tmp_path, [job], Pressing())
    assert checkpoint.exists()
    assert not cell_path(tmp_path, *ONE).exists()
    for folder in (tmp_path, local):
        assert train_one(job, folder, threads()).failure is None
    assert not checkpoint.exists()
    resumed, whole = (timeless([read_cell(folder, *ONE)]) for folder in (tmp_path, local))
    assert resumed == whole


@on_ray
def test_a_loop_of_ones_own_survives_the_loss_of_a_worker(machines, tmp_path):
    """The connection is the script's own, and the function could not be sent to a process."""
    import ray

    ray.init(address=machines.cluster.address, log_to_driver=False, logging_level="error")
    first_try = tmp_path / "first try"

    def train(attention, seed):
        layer = attention(16, 2)
        layer(torch.zeros(1, 8, 16))
        if not first_try.exists():
            first_try.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.8 + seed / 1000

    options = {"seeds": 3, "quiet": True, "engine": "ray"}
    try:
        out = tmp_path / "out"
        with pytest.raises(ConfigError, match="address"):
            suffice.compare(train, ["standard", "efficient"], out=out, address="auto", **options)
        done = suffice.compare(train, ["standard", "efficient"], out=out, **options)
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert first_try.exists()
    local = suffice.compare(
        train, ["standard", "efficient"], out=tmp_path / "local", seeds=3, quiet=True
    )
    assert timeless(done.results.cells) == timeless(local.results.cells)
    assert done.verdict.outcome == local.verdict.outcome


@on_ray
def test_interrupted_programs_leave_no_worker(machines, tmp_path):
    """Ctrl-C as a terminal sends it, to the whole group of the program's processes."""
    code = f"""
from pathlib import Path
import os
import torch
import suffice

def train(attention, seed):
    attention(16, 2)(torch.zeros(1, 8, 16))
    Path({str(tmp_path)!r}, str(os.getpid())).touch()
    while True:
        torch.zeros(1).add(1)

suffice.compare(
    train, ["standard", "efficient"], seeds=3, out={str(tmp_path / "out")!r}, engine="ray",
    address={machines.cluster.address!r},
)
"""
    program = subprocess.Popen(
        [sys.executable, "-W", "default", "-c", code],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )

    def trainings():
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]

    until(lambda: len(trainings()) == 2 or program.poll() is not None)
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=120)
    assert program.returncode != 0, errors
    assert "KeyboardInterrupt" in errors
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in trainings()))


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
