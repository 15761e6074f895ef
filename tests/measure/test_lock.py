"""One program at a time in a working folder."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from types import SimpleNamespace

import pytest

from suffice.errors import ConfigError, DataError
from suffice.measure.processes import locked


def test_a_folder_has_one_program_at_a_time(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(ConfigError, match="another program is training in"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_a_killed_program_holds_nothing(tmp_path):
    code = (
        "import fcntl, os, sys, time; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-S", "-c", code, str(tmp_path / ".lock")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match="another program is training"), locked(tmp_path):
        pass
    other.kill()
    other.wait()
    other.stdout.close()
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataError, match="cannot write in .* make room or choose another folder"),
        locked(tmp_path / "file" / "run"),
    ):
        pass


def test_a_disk_without_locks_is_told(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(DataError, match=r"cannot lock .* \(No locks available\); choose a"),
        locked(tmp_path),
    ):
        pass


def test_where_files_are_locked_by_ranges_of_bytes(tmp_path, monkeypatch):
    held = []

    def locking(opened, mode, size):
        assert (mode, size) == ("at once", 1)
        if held:
            raise PermissionError(errno.EACCES, "Permission denied")
        held.append(opened)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK="at once"))
    with (
        locked(tmp_path),
        pytest.raises(ConfigError, match="another program is training in"),
        locked(tmp_path),
    ):
        pass
    assert len(held) == 1
