from __future__ import annotations

import builtins
import sys
import time
import types
from dataclasses import replace

import pytest

from suffice.errors import ConfigError, DataError, StateError
from suffice.measure.results import read_cell
from suffice.papers import on_ray as module
from suffice.papers.jobs import Means, order_of
from suffice.papers.on_ray import on_ray, train_one
from suffice.torch_compat import threads
from tests.papers.conftest import Told

LOCAL = Means(jobs=2, engine="ray", address="local")


class Lost(Exception):
    """As Ray tells that a machine is gone."""


class Failed(Lost):
    """As Ray tells that a task raised."""

    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Cluster:
    """Ray with one machine, this one; what a cell gives is said beforehand."""

    class exceptions:  # noqa: N801 - Ray's own name
        RayError = Lost
        RayTaskError = Failed

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.down = False

    def init(self, **options):
        self.options = options

    def shutdown(self):
        self.down = True

    def remote(self, **options):
        self.task = options
        return lambda function: self

    # `task.remote(...)` of what `remote(...)` gave is told apart by its arguments
    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if name != "remote":
            return found
        return lambda *given, **options: self._begin(*given) if given else found(**options)

    def _begin(self, line, key):
        self.asked.append(tuple(key))
        return len(self.asked)

    def wait(self, running, timeout):
        return running[:1], running[1:]

    def get(self, reference):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(plan, folder, cluster, monkeypatch, means=LOCAL, deadline=None):
    monkeypatch.setattr(module, "_ray", lambda: cluster)
    watch = Told()
    done = on_ray(order_of(plan, folder, 1), plan.cells, watch, deadline, means)
    return done, watch


def test_every_cell_is_asked_for_once(plan, tmp_path, monkeypatch):
    cluster = Cluster(None, None)
    done, watch = run(plan, tmp_path, cluster, monkeypatch)
    assert sorted(done) == sorted(cluster.asked) == sorted(watch.ended) == sorted(plan.cells)
    assert cluster.options["num_cpus"] == 2
    assert cluster.task == {"num_cpus": 1, "max_retries": 0, "max_calls": 1}
    assert cluster.down


def test_a_lost_machine_gives_its_cell_back(plan, tmp_path, monkeypatch):
    cluster = Cluster(Lost(), None, None)
    done, watch = run(plan, tmp_path, cluster, monkeypatch)
    assert sorted(done) == sorted(plan.cells)
    assert len(watch.gone) == 1
    assert len(cluster.asked) == 3


def test_a_cell_that_loses_every_machine_is_given_up(plan, tmp_path, monkeypatch):
    cluster = Cluster(Lost(), Lost(), Lost())
    one = replace(plan, mechanisms=("standard",))
    with pytest.raises(StateError, match="3 machines of the cluster were lost .* standard heads 4"):
        run(one, tmp_path, cluster, monkeypatch)
    assert cluster.down


def test_what_a_machine_cannot_do_is_told(plan, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no room."):
        run(plan, tmp_path, Cluster("no room."), monkeypatch)
    with pytest.raises(DataError, match="standard heads 4 seed 0: no such data"):
        run(plan, tmp_path, Cluster(Failed(DataError("no such data"))), monkeypatch)


def test_no_cell_begins_after_the_deadline(plan, tmp_path, monkeypatch):
    done, watch = run(plan, tmp_path, Cluster(), monkeypatch, deadline=time.monotonic())
    assert done == watch.begun == []


def test_a_cluster_that_is_not_there_is_told(plan, tmp_path, monkeypatch):
    cluster = Cluster()

    def init(**options):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(cluster, "init", init)
    with pytest.raises(ConfigError, match="no Ray cluster at 'auto' .nobody answers.; start one"):
        run(plan, tmp_path, cluster, monkeypatch, replace(LOCAL, address=None))


def test_ray_is_asked_for_where_it_is_not_installed(plan, tmp_path, monkeypatch):
    original = builtins.__import__

    def refuse(name, *rest, **options):
        if name == "ray":
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match="needs Ray, which is not installed: pip install"):
        on_ray(order_of(plan, tmp_path, 1), plan.cells, Told(), None, LOCAL)


def test_ray_is_imported_where_it_is_installed(monkeypatch):
    standing_in = types.ModuleType("ray")
    monkeypatch.setitem(sys.modules, "ray", standing_in)
    assert module._ray() is standing_in


def test_a_machine_trains_one_cell_and_says_what_went_wrong(plan, tmp_path):
    line, before = order_of(plan, tmp_path, 1).to_line(), threads()
    assert train_one(line, ["standard", 4, 0]) is None
    assert "num_heads=5" in train_one(line, ["standard", 5, 0])
    threads(before)
    assert read_cell(tmp_path, "standard", 4, 0).seed == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.usefixtures("path_of_workers")
def test_a_local_cluster_of_two_finds_what_one_process_finds(plan, tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from tests.papers.conftest import timeless

    done = on_ray(order_of(plan, tmp_path / "ray", 1), plan.cells, Told(), None, LOCAL)
    assert sorted(done) == sorted(plan.cells)
    before = threads()
    line = order_of(plan, tmp_path / "here", 1).to_line()
    assert [train_one(line, list(key)) for key in plan.cells] == [None, None]
    threads(before)
    theirs, ours = (
        timeless(read_cell(tmp_path / folder, *key) for key in plan.cells)
        for folder in ("ray", "here")
    )
    assert theirs == ours
