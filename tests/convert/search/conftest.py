"""Timing in these tests is short: what is tested is what is made of it."""

from __future__ import annotations

import pytest

from suffice.convert.search import decoding, measured


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(decoding, "ROUNDS", 3)
    monkeypatch.setattr(decoding, "SECONDS", 1e-4)
    monkeypatch.setattr(measured, "ROUNDS", 4)
