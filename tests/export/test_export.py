"""A folder appears whole or not at all, and replaces nothing that no export wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.export import export
from suffice.export.export import replacing_folder

from .models import saved


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_left_of_an_error(tmp_path):
    def fail():
        with replacing_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            assert not (tmp_path / "out").exists()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert listed(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), DataError("no room")])
def test_a_full_disk_is_named(error, tmp_path):
    with (
        pytest.raises(CheckpointError, match="cannot write .*out .*; free space, or give another"),
        replacing_folder(tmp_path / "out"),
    ):
        raise error
    assert listed(tmp_path) == []


def test_what_a_killed_export_left_is_removed(tmp_path):
    (tmp_path / ".out.77.part" / "x").mkdir(parents=True)
    (tmp_path / ".other.77.part").mkdir()
    with replacing_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("x")
    assert listed(tmp_path) == [".other.77.part", "out"]


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
    rename = Path.rename

    def failing(self, target):
        if self.name.endswith(".part"):
            raise OSError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
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
