"""A home of its own for each test, and where the user's data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no SUFFICE_DATA, no network; returns the cache's folder."""

    def offline(*_args: object, **_options: object) -> None:
        raise OSError("there is no network in this test")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.setattr("suffice.data.files.urlopen", offline)
    return tmp_path / "cache" / "suffice"


@pytest.fixture
def options() -> Path:
    """The folder that $SUFFICE_DATA names."""
    folder = os.environ.get("SUFFICE_DATA")
    if not folder:
        pytest.skip("SUFFICE_DATA names no folder of data")
    return Path(folder)
