"""Files of several programs at once: what is half written by one is left alone by the others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from suffice.utils.files import replacing


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.json"


def beside(path, process):
    """Write what a process of this number would have under its temporary name."""
    found = path.with_name(f".{path.name}.{process}.part")
    found.write_text("half")
    return found


def write(path):
    with replacing(path) as temporary:
        temporary.write_text("whole")


def test_what_a_living_program_writes_is_left_alone(path):
    command = [sys.executable, "-S", "-c", "input()"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE)
    found = beside(path, other.pid)
    write(path)
    assert found.exists()
    other.communicate(b"\n")
    write(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_program_of_another_user_is_alive(path, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    found = beside(path, 77)
    write(path)
    assert found.exists()


@pytest.mark.parametrize("process", [os.getpid(), 10**30], ids=["own", "none"])
def test_what_this_program_left_or_no_program_can_have_is_removed(path, process):
    found = beside(path, process)
    write(path)
    assert not found.exists()
    assert path.read_text() == "whole"
