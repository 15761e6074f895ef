"""Runs of pytest in children of a process that has imported everything but `suffice`.

A child costs a fork instead of the import of torch and transformers. `trace` runs a file of tests
once and keeps which test executes which line of `suffice`; `run` runs chosen tests on one mutant.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType

import coverage
import pytest

from tools.mutants.operators import ROOT, Mutant, mutated

IMPORTED = (
    "torch numpy scipy.stats scipy.optimize sklearn.datasets sklearn.metrics matplotlib.pyplot "
    "PIL.Image safetensors.torch rich.console rich.table rich.live typer jinja2 "
    "tokenizers transformers transformers.models.llama.modeling_llama httpx starlette.testclient "
    "transformers.models.bert.modeling_bert transformers.models.gpt2.modeling_gpt2 uvicorn "
    "torch.utils.flop_counter"
)
LOG = ROOT / "build" / "mutants" / "child.log"  # what the latest child printed
IDLE = 60.0  # seconds in which a child that waits for nothing would compute
DATA_BYTES = 6 << 30  # of memory that a child may take
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line")
OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # the parent has imported plugins


def prepare() -> None:
    """Import what tests import, one thread for each process."""
    for name in IMPORTED.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    import torch

    torch.set_num_threads(1)
    assert not any(name.split(".")[0] == "suffice" for name in sys.modules)
    gc.collect()
    gc.freeze()


def in_child(work: Callable[[Path], dict], cpu_seconds: float) -> dict:
    """Return what a function returns in a child process; {"end": ...} if it ends early.

    Args:
        work: takes a folder that is deleted afterwards.
        cpu_seconds: that the child may compute; it also ends if it is idle for IDLE seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix="suffice-mutant-"))
    answer, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(answer)
        _as_child(work, folder, write, int(cpu_seconds) + 1)
    os.close(write)
    data, computed = b"", 0
    try:
        while True:
            ready, _, _ = select.select([answer], [], [], IDLE)
            if not ready and _computed(child) > computed:  # on a busy machine
                computed = _computed(child)
                continue
            block = os.read(answer, 1 << 20) if ready else b""
            data += block
            if not block:
                break
    finally:
        os.close(answer)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
    return json.loads(data) if data else {"end": "crash" if ready else "timeout"}


def _computed(child: int) -> int:
    """Return the CPU time of a process in ticks; 0 where the system does not tell."""
    path = Path(f"/proc/{child}/stat")
    return sum(map(int, path.read_text().rpartition(")")[2].split()[11:13])) if path.exists() else 0


def _as_child(work: Callable[[Path], dict], folder: Path, write: int, cpu_seconds: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    try:
        result = json.dumps(work(folder)).encode()
        while result:
            result = result[os.write(write, result) :]
    except BaseException:  # noqa: BLE001 - whatever it is, the parent's stack must not run here
        traceback.print_exc()
    finally:
        os._exit(0)


def trace(file: str, data_file: Path) -> dict:
    """Run a file of tests; return the seconds of each test that passed, and those of collection.

    `data_file` gets the lines that each test executes, as coverage keeps them: the context of a
    line is the test and its phase.
    """

    def work(folder: Path) -> dict:
        lines = coverage.Coverage(
            data_file=str(data_file), source=[str(ROOT / "suffice")], config_file=False
        )
        recorder = _Recorder(lines)
        start = time.monotonic()
        lines.start()
        code = pytest.main([*OPTIONS, f"--basetemp={folder / 't'}", file], plugins=[recorder])
        lines.stop()
        lines.save()
        return {
            "code": int(code),
            "collection": recorder.collected - start,
            "seconds": recorder.seconds,
            "failed": sorted(recorder.failed),
            "wall": time.monotonic() - start,
        }

    return in_child(work, 300)


def run(mutant: Mutant, tests: Sequence[str], clean_seconds: float) -> dict:
    """Run tests on a mutant until one fails; return the test, or how it ended, under "end".

    Args:
        mutant: the edit.
        tests: names of pytest, in the order in which they run.
        clean_seconds: what they take without the edit.
    """
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))

    def work(folder: Path) -> dict:
        finder = _Finder(mutant)
        sys.meta_path.insert(0, finder)
        chosen = _Chosen(tests, finder)
        arguments = [*OPTIONS, "-x", f"--basetemp={folder / 't'}", *files]
        code = int(pytest.main(arguments, plugins=[chosen]))
        end = {0: "passed", 1: "failed", 2: "failed", 5: "no tests"}.get(code, f"pytest {code}")
        return {"end": end, "test": chosen.failed, "ran": chosen.ran}

    return in_child(work, 15 + 4 * clean_seconds)


class _Recorder:
    """Tells coverage which test runs, and keeps their times."""

    def __init__(self, lines: coverage.Coverage) -> None:
        self.lines, self.seconds, self.failed = lines, {}, set()
        self.collected = time.monotonic()

    def pytest_collection_finish(self) -> None:
        self.collected = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        self.lines.switch_context(f"{item.nodeid}|setup")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self.lines.switch_context(f"{item.nodeid}|call")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item):
        self.lines.switch_context(f"{item.nodeid}|teardown")
        result = yield
        self.lines.switch_context("")
        return result

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


class _Chosen:
    """Keeps and orders the chosen tests; all of a file whose names have changed."""

    def __init__(self, tests: Sequence[str], finder: _Finder) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.failed, self.ran, self.finder = "", 0, finder

    def pytest_sessionstart(self) -> None:
        sys.meta_path.insert(0, self.finder)  # before pytest's own, which imports given files

    def pytest_collection_modifyitems(self, items: list) -> None:
        last = len(self.order)
        names = {item.nodeid for item in items}
        changed = {name.partition("::")[0] for name in self.order if name not in names}
        chosen = [
            item
            for item in items
            if item.nodeid in self.order or item.nodeid.partition("::")[0] in changed
        ]
        items[:] = sorted(chosen, key=lambda item: self.order.get(item.nodeid, last))

    def pytest_runtest_logreport(self, report) -> None:
        self.ran += report.when == "call"
        if report.outcome == "failed":
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.outcome == "failed":
            self.failed = self.failed or f"collection of {report.nodeid}"


class _Finder:
    """Imports one module from an edited syntax tree; files stay as they are."""

    def __init__(self, mutant: Mutant) -> None:
        self.path = ROOT / mutant.file
        parts = Path(mutant.file).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.code = compile(
            mutated(self.path.read_text("utf-8"), mutant), str(self.path), "exec", dont_inherit=True
        )

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        package = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = _Loader(name, str(self.path))
        loader.code = self.code
        return importlib.util.spec_from_file_location(
            name, self.path, loader=loader, submodule_search_locations=package
        )


class _Loader(importlib.machinery.SourceFileLoader):
    code: CodeType

    def get_code(self, fullname):
        return self.code
