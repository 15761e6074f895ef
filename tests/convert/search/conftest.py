"""Timing in these tests is short: what is tested is what is made of it."""

from __future__ import annotations

import pytest

from suffice.convert.search import combinations, timing


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", 3)
    monkeypatch.setattr(timing, "SECONDS", 1e-4)
    monkeypatch.setattr(combinations, "ROUNDS", 4)
