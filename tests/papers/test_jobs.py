from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from suffice.data import load
from suffice.errors import ConfigError, DataError, StateError
from suffice.measure.plan import Plan
from suffice.measure.results import cell_path, read_cell
from suffice.measure.training import train_cell
from suffice.papers import jobs as module
from suffice.papers import jobs as worker
from suffice.papers.jobs import Jobs, Order, order_of
from suffice.torch_compat import threads
from suffice.train import Silent, current
from tests.papers.conftest import Told, quick, timeless

pytestmark = pytest.mark.usefixtures("path_of_workers")


def jobs(plan, folder, **options) -> Jobs:
    return Jobs(order=order_of(plan, folder, 1), keys=plan.cells, watch=Told(), **options)


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


def read(plan, folder):
    return timeless(read_cell(folder, *key) for key in plan.cells)


def test_a_killed_worker_gives_its_cell_back_and_all_find_what_one_process_finds(
    plan, tmp_path, alone
):
    work = jobs(plan, tmp_path)
    struck = []

    def strike(number, done, total):
        if not struck:
            struck.append(work._processes.copy().pop())
            struck[0].kill()

    work.watch.step = strike
    assert sorted(work.run(2)) == sorted(plan.cells)
    assert struck[0].returncode == -signal.SIGKILL
    assert len(work.watch.gone) == 1
    assert sorted(work.watch.begun) == sorted([*plan.cells, *work.watch.gone])
    assert sorted(work.watch.ended) == sorted(plan.cells)
    assert read(plan, tmp_path) == alone


def test_a_cell_that_loses_every_worker_is_given_up(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    work = jobs(plan, tmp_path)
    with pytest.raises(StateError, match="3 workers were lost while they trained standard with 4"):
        work.run(1)
    assert work.watch.gone == [plan.cells[0]] * 3


def test_no_cell_begins_after_the_deadline(plan, tmp_path):
    work = jobs(plan, tmp_path, deadline=time.monotonic())
    assert work.run(2) == []
    assert work.watch.begun == []


def test_a_full_disk_is_told_and_leaves_no_half_of_a_file(plan, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        said = serve(order_of(plan, tmp_path, 1), *plan.cells)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write" in said[-1]["error"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def imitate(monkeypatch, tmp_path, code):
    """Let a few lines of Python stand in for the worker."""
    script = tmp_path / "worker"
    text = textwrap.dedent(code).strip()
    script.write_text(f"#!{sys.executable} -S\nimport json, signal, sys, time\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(script))


def test_what_a_worker_cannot_do_ends_the_others_after_their_cells(plan, tmp_path, monkeypatch):
    imitate(
        monkeypatch,
        tmp_path,
        """
        sys.stdin.readline()
        key = json.loads(sys.stdin.readline())
        print(json.dumps({"done": key} if key[0] == "standard" else {"error": "no room."}))
        sys.stdout.flush()
        sys.stdin.readline()
        """,
    )
    work = jobs(plan, tmp_path)
    with pytest.raises(DataError, match="no room"):
        work.run(2)
    assert work.done == work.watch.ended == [("standard", 4, 0)]
    assert work._processes == set()


def test_an_error_of_the_machine_is_not_lost(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError):
        jobs(plan, tmp_path).run(1)


def test_ctrl_c_reaches_each_worker_once_and_waits_for_its_checkpoint(plan, tmp_path, monkeypatch):
    imitate(
        monkeypatch,
        tmp_path,
        """
        def note(*_):
            with open(sys.argv[0] + ".noted", "a") as file:
                file.write("x")
            sys.exit(130)
        signal.signal(signal.SIGINT, note)
        print(json.dumps({"step": [1, 2]}), flush=True)
        time.sleep(60)
        """,
    )
    work = jobs(plan, tmp_path)
    work.watch.step = lambda *_: os.kill(os.getpid(), signal.SIGINT)
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            work.run(1)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert (tmp_path / "worker.noted").read_text() == "x"
    assert work._processes == set()
    assert work.watch.gone == []


def test_no_worker_starts_after_ctrl_c(plan, tmp_path, monkeypatch):
    imitate(monkeypatch, tmp_path, "time.sleep(60)")
    work = jobs(plan, tmp_path)
    work._stopped = True
    process = work._start()
    work._end(process)
    assert process.returncode == -signal.SIGKILL


def test_a_killed_parent_takes_its_worker_along_and_its_cell_comes_out_the_same(
    plan, tmp_path, alone
):
    code = f"""
    from pathlib import Path
    from suffice.measure.plan import Plan
    from suffice.papers.jobs import Jobs
    from suffice.papers.jobs import order_of
    from tests.papers.conftest import Told, quick

    plan = Plan(recipe=quick(), mechanisms=("standard",), heads=(4,), seeds=1, baseline="standard")
    watch = Told()
    work = Jobs(order=order_of(plan, Path({str(tmp_path)!r}), 1), keys=plan.cells, watch=watch)
    watch.step = lambda *_: print([p.pid for p in work._processes][0], flush=True)
    work.run(1)
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
    assert not cell_path(tmp_path, "standard", 4, 0).exists()
    assert serve(order_of(plan, tmp_path, 1), ("standard", 4, 0))[-1] == {
        "done": ["standard", 4, 0]
    }
    assert timeless([read_cell(tmp_path, "standard", 4, 0)]) == alone[1:]


def running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# what a worker does


def serve(order, *keys):
    said = []
    lines = [order.to_line(), *[json.dumps(key) + "\n" for key in keys]]
    before = threads()
    worker.serve(lines, said.append)
    assert threads() == order.threads
    threads(before)
    return said


def test_a_worker_says_how_far_it_is_and_what_is_done(plan, tmp_path):
    said = serve(order_of(plan, tmp_path, 1), *plan.cells[:2])
    assert [answer for answer in said if "done" in answer] == [
        {"done": ["standard", 4, 0]},
        {"done": ["efficient", 4, 0]},
    ]
    done, total = said[0]["step"]
    assert 0 < done <= total
    assert read_cell(tmp_path, "standard", 4, 0).num_heads == 4


def test_a_worker_tells_what_it_cannot_do(plan, tmp_path):
    said = serve(order_of(plan, tmp_path, 1), ("standard", 5, 0), ("standard", 4, 0))
    assert list(said[0]) == ["error"]
    assert "num_heads=5" in said[0]["error"]
    assert len(said) == 1


def test_a_worker_reads_stdin_and_writes_stdout(plan, tmp_path, monkeypatch):
    keys = "".join(json.dumps(key) + "\n" for key in plan.cells[:1])
    lines = order_of(plan, tmp_path, 1).to_line() + keys + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    told = io.StringIO()
    monkeypatch.setattr(sys, "stdout", told)
    before = threads()
    worker.main()
    threads(before)
    assert json.loads(told.getvalue().splitlines()[-1]) == {"done": ["standard", 4, 0]}


def test_a_worker_ends_with_its_parent(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    worker._pump(None)
    assert codes == [worker.ALONE]


def test_an_interrupted_worker_leaves_with_the_code_of_ctrl_c(monkeypatch):
    def serve(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "serve", serve)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    with pytest.raises(SystemExit, match="130"):
        worker.main()


# what a worker is told


def test_an_order_makes_the_same_recipe(plan, tmp_path):
    order = order_of(plan, tmp_path, 2)
    again = Order.from_line(order.to_line())
    assert again == order
    assert again.made == plan.recipe
    assert order.training == {"epochs": 1}
    assert again.plan("efficient", 4).pairs == [("efficient", 4)]


def test_a_recipe_that_no_worker_can_make_is_refused(plan, tmp_path):
    other = replace(plan.recipe, model=replace(plan.recipe.model, d_model=32))
    with pytest.raises(ConfigError, match="differs from the one of that name in more than its"):
        order_of(replace(plan, recipe=other), tmp_path, 1)


def test_a_worker_that_is_interrupted_while_it_starts_says_nothing(tmp_path):
    (tmp_path / "suffice").mkdir()
    (tmp_path / "suffice" / "__init__.py").write_text("raise KeyboardInterrupt")
    worker = subprocess.run(
        [sys.executable, "-S", "-c", module.START],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (worker.returncode, worker.stderr) == (130, b"")
