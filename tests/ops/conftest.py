"""What several tests of ops share."""

from __future__ import annotations

import importlib

import pytest

from suffice.ops.native import attention


@pytest.fixture
def without_kernels(monkeypatch):
    """The library as it is where no native kernels were built."""
    monkeypatch.setattr(attention, "MISSING", "they were not built")
    plans = importlib.import_module("suffice.ops.attend")._plans  # the name is also a function's
    plans.clear()
    yield
    plans.clear()
