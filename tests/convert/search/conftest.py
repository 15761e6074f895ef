"""Timing in these tests is short: what is tested is what is made of it."""

from __future__ import annotations

from importlib import import_module

import pytest

from suffice.convert.search import timing

searching = import_module("suffice.convert.search.search")  # the name is its function's, too


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", 3)
    monkeypatch.setattr(timing, "SECONDS", 1e-4)
    monkeypatch.setattr(searching, "ROUNDS", 4)
    monkeypatch.setattr(searching, "RANDOM", 6)
