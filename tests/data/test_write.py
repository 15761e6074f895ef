from __future__ import annotations

from pathlib import Path

import pytest

from suffice.data.files import atomically
from suffice.errors import DataError


def test_the_file_appears_when_the_block_ends(tmp_path: Path):
    target = tmp_path / "new" / "file"
    with atomically(target) as temporary:
        temporary.write_text("whole")
        number = temporary.stat().st_ino
        assert not target.exists()
    assert target.stat().st_ino == number  # moved, not copied
    assert target.read_text() == "whole"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    target = tmp_path / "file"
    target.write_text("old")

    def interrupted() -> None:
        with atomically(target) as temporary:
            temporary.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path):
    def filled() -> None:
        with atomically(tmp_path / "file") as temporary:
            temporary.write_text("ha")
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot write .*file \(No space left on device\); make"):
        filled()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with (
        pytest.raises(DataError, match=r"cannot write .*taken.file .*set XDG_CACHE_HOME"),
        atomically(tmp_path / "taken" / "file"),
    ):
        raise NotImplementedError  # is not reached
