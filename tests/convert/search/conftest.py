"""Timing in these tests is short: what is tested is what is made of it."""

from __future__ import annotations

import pytest

from suffice.convert.search import mixes, scoring


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(scoring, "ROUNDS", 3)
    monkeypatch.setattr(scoring, "SECONDS", 1e-4)
    monkeypatch.setattr(mixes, "ROUNDS", 4)
