"""The folder of a run: its settings, and one program at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from threading import Timer

import pytest

from suffice.errors import ConfigError, DataError
from suffice.utils.files import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path, "run.json", "training")


def test_settings_are_written_and_read_back(run):
    assert not run.exists()
    run.claim({"seed": 0}, resume=False)
    assert run.read() == {"seed": 0}


def test_a_folder_with_a_run_is_refused_unless_resumed(run):
    run.claim({"seed": 0}, resume=False)
    with pytest.raises(ConfigError, match="--resume"):
        run.claim({"seed": 1}, resume=False)
    assert run.read() == {"seed": 0}
    run.claim({"seed": 1}, resume=True)
    assert run.read() == {"seed": 1}


def test_a_failed_check_leaves_the_settings_alone(run):
    def check():
        raise ConfigError("another seed")

    run.claim({"seed": 0}, resume=True, check=check)  # nothing to check yet
    with pytest.raises(ConfigError, match="another seed"):
        run.claim({"seed": 1}, resume=True, check=check)
    assert run.read() == {"seed": 0}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_damaged_settings_are_refused(run, content):
    if content is not None:
        run.settings_path.write_bytes(content)
    with pytest.raises(DataError, match=r"run\.json"):
        run.read()


@pytest.mark.parametrize(("error", "file", "earlier", "left"), [
    (DataError, "run.json", False, None),
    (DataError, "run.json", True, [".lock", "run.json"]),
    (DataError, "cell.json", False, [".lock", "cell.json", "run.json"]),
    (KeyboardInterrupt, "run.json", False, [".lock", "run.json"]),
])  # fmt: skip
def test_an_error_before_any_work_leaves_no_folder(tmp_path, error, file, earlier, left):
    run = RunFolder(tmp_path / "new", "run.json", "training")
    if earlier:
        run.claim({"seed": 0}, resume=False)

    def fail():
        with run.locked():
            run.claim({"seed": 0}, resume=True)
            (run.path / file).touch()
            raise error

    pytest.raises(error, fail)
    assert (sorted(os.listdir(run.path)) if run.path.exists() else None) == left


def test_a_program_that_only_looks_refuses_nobody(run):
    with open(run.path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Timer(0.2, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        with run.locked():
            pass


def test_a_killed_program_holds_no_lock(run):
    code = (
        "import fcntl, os, sys, time; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-S", "-c", code, str(run.path / ".lock")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(ConfigError, match="another program"), run.locked(patience=0.0):
        pass
    other.kill()
    other.wait()
    other.stdout.close()
    with run.locked():
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    run = RunFolder(tmp_path / "file" / "run", "run.json", "training")
    with pytest.raises(DataError, match="--out"), run.locked():
        pass


def test_a_disk_without_locks_is_refused(run, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DataError, match="No locks available"), run.locked():
        pass
