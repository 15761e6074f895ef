"""A folder appears whole or not at all, and replaces nothing that no export wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suffice.errors import CheckpointError, ConfigError
from suffice.export import export

from .models import saved


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_export_replaces_an_export(tmp_path):
    saved(tmp_path / "run")
    export(tmp_path / "run", "hf", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    export(tmp_path / "run", "hf", tmp_path / "empty")
    assert listed(tmp_path / "empty") == listed(tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    saved(tmp_path / "run", None)
    export(tmp_path / "run", "hf", tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    assert listed(tmp_path) == ["empty", "out", "run"]


def test_what_is_there_stays_when_its_place_cannot_be_taken(tmp_path, monkeypatch):
    saved(tmp_path / "run")
    export(tmp_path / "run", "hf", tmp_path / "out")
    before = listed(tmp_path / "out")
    rename = os.rename

    def failing(source, target):
        if Path(source).name.endswith(".part"):
            raise OSError(13, "Permission denied")
        return rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    monkeypatch.setattr("suffice.utils.files._exchange", lambda *_: False)
    with pytest.raises(CheckpointError, match="Permission denied"):
        export(tmp_path / "run", "hf", tmp_path / "out")
    with pytest.raises(CheckpointError, match="Permission denied"):
        export(tmp_path / "run", "hf", tmp_path / "other")
    assert listed(tmp_path / "out") == before
    assert listed(tmp_path) == ["out", "run"]


def test_what_no_export_wrote_is_not_replaced(tmp_path):
    saved(tmp_path / "run")
    with pytest.raises(ConfigError, match="--out .*run exists and holds 'run', which no export wr"):
        export(tmp_path / "run", "hf", tmp_path / "run")
    export(tmp_path / "run", "hf", tmp_path / "out")
    (tmp_path / "out" / "thesis.txt").write_text("years")
    with pytest.raises(ConfigError, match="holds 'thesis.txt', which no export wrote"):
        export(tmp_path / "run", "hf", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years"
