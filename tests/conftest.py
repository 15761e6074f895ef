"""What holds for every test: poisoned memory, one seed, and a record of every matched raise."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib  # noqa: F401 - imported before torch.empty is poisoned below
import pytest
import torch
from _pytest.raises import RaisesExc

from tests.meta.raises import MATCHED, is_whole, statement_of, unmatched

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the tests' own profiles are silent, too

_leave = RaisesExc.__exit__


def _record(self, kind, error, trace):
    """Leave `pytest.raises`, and note which raise statements a match= was held against.

    An error raised from another one tells the other's sentence: both count.
    """
    matched = _leave(self, kind, error, trace)
    while matched and self.match is not None and error is not None:
        MATCHED.add(statement_of(error.__traceback__))
        error = error.__cause__
    return matched


RaisesExc.__exit__ = _record


@pytest.fixture(autouse=True)
def seed():
    """Start every test from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Fill memory that torch leaves uninitialised with NaN: who reads it is found out."""

    def poisoned(make):
        def filled(*args, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return filled

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


def pytest_configure(config):
    """Give each of several processes one thread: the tensors are small."""
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)


def pytest_sessionfinish(session, exitstatus):
    """Fail a whole run that left a raise unmatched; a worker hands on what it has met."""
    config = session.config
    whole = is_whole({item.path for item in getattr(session, "items", ())})
    if hasattr(config, "workeroutput"):
        met = [(str(path), line) for path, line in MATCHED - {None}]
        config.workeroutput |= {"met": met, "whole": whole}
        return
    if (whole or WHOLE) and exitstatus == 0 and (told := unmatched()):
        report = config.pluginmanager.get_plugin("terminalreporter")
        report.ensure_newline()
        report.write_line(f"{len(told)} raises that no test has matched: {' '.join(told)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


WHOLE = set()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Take what a worker has met."""
    told = getattr(node, "workeroutput", {})
    MATCHED.update((Path(path), line) for path, line in told.get("met", ()))
    WHOLE.update({"whole"} if told.get("whole") else ())
