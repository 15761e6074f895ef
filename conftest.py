"""What holds for every test: poisoned memory and one seed."""

from __future__ import annotations

import gc
import os
from importlib import import_module

import matplotlib  # noqa: F401 - imported before torch.empty is poisoned below
import pytest
import torch

from benchmarks import models
from suffice.ops.dispatch import forget_plans
from suffice.ops.native import library

# torch notes which functions take a default device at the first use of one: before the poison
with torch.device("meta"):
    torch.zeros(1)

# what these helpers assert holds with python -O, too, as it does in the modules of tests
pytest.register_assert_rewrite("tests.ops.native.sums", "tests.train.two_processes")

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the tests' own profiles are silent, too


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


@pytest.fixture
def released():
    """Return the path of a model of `benchmarks.models` by its name; skip where it is absent."""

    def path(name):
        found = models.path(name)
        return found if found.exists() else pytest.skip(f"{found} is absent: run `make models`")

    return path


@pytest.fixture
def no_kernels(monkeypatch):
    """Pretend that the native kernels were not built."""
    monkeypatch.setattr(library, "_loaded", lambda: (None, "they were not built"))
    forget_plans()
    yield
    forget_plans()


@pytest.fixture
def brief(monkeypatch):
    """Leave out figures of reports, which take long; train in this process on a busy machine.

    Tables of tests are small: whether a bag of words is as good stops no comparison.
    """
    monkeypatch.setattr(
        import_module("suffice.comparison.report.page"), "draw_figures", lambda *_: {}
    )
    compare = import_module("suffice.comparison.compare")
    monkeypatch.setattr(compare, "START", 1e9)
    monkeypatch.setattr(compare, "_refuse_behind", lambda *_: None)


gc.disable()  # while tests are collected nothing becomes garbage


def pytest_collection_finish():
    """Leave tests and modules out of every collection of garbage: they live to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_configure(config):
    """Give each of several processes, and those that they begin, one thread: tensors are small."""
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
