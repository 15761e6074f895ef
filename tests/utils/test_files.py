"""Files of several programs at once: what is half written by one is left alone by the others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from suffice.utils.files import LEFTOVER_AGE, _process_table, replacing, write_atomic

HERE, ELSEWHERE = _process_table(), "0" * 12
NO_PROCESS = 10**30


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.json"


def write(path):
    with replacing(path) as temporary:
        temporary.write_text("whole")


def leftover(path, writer, *, age=0.0):
    """Make a folder as a writer leaves it, with one file that was changed some seconds ago."""
    half = path.with_name(f".{path.name}.{writer}.part")
    half.mkdir()
    (half / "weights").write_text("half")
    os.utime(half / "weights", (time.time() - age,) * 2)
    os.utime(half, (0, 0))
    return half


def test_a_living_program_of_this_machine_is_waited_for(path):
    command = [sys.executable, "-S", "-c", "input()"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE)
    half = leftover(path, f"{HERE}.{other.pid}.ab", age=2 * LEFTOVER_AGE)
    write(path)
    assert half.exists()
    other.communicate(b"\n")
    write(path)
    assert os.listdir(path.parent) == [path.name]


def test_a_program_of_another_user_is_alive(path, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    half = leftover(path, f"{HERE}.77.ab", age=2 * LEFTOVER_AGE)
    write(path)
    assert half.exists()


@pytest.mark.parametrize(
    ("writer", "age", "stays"),
    [
        (f"{HERE}.{NO_PROCESS}.ab", 0, False),
        (f"{ELSEWHERE}.{NO_PROCESS}.ab", LEFTOVER_AGE - 60, True),
        (f"{ELSEWHERE}.{os.getpid()}.ab", LEFTOVER_AGE + 60, False),
        (f"{NO_PROCESS}", LEFTOVER_AGE - 60, True),  # the names of earlier versions
        (f"{NO_PROCESS}", LEFTOVER_AGE + 60, False),
    ],
    ids=["dead", "elsewhere", "elsewhere-old", "unknown", "unknown-old"],
)
def test_numbers_are_compared_on_one_machine_and_ages_elsewhere(path, writer, age, stays):
    half = leftover(path, writer, age=age)
    write(path)
    assert half.exists() == stays
    assert path.read_text() == "whole"


def test_writers_of_equal_numbers_do_not_meet(path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert os.listdir(path.parent) == [path.name]


CLAIMS = """
import sys
from pathlib import Path
from suffice.utils.files import RunFolder
run = RunFolder(Path(sys.argv[1]), "plan.json", "comparison")
input()
for n in range(20):
    run.claim({"command": f"{sys.argv[2]} {n}"}, resume=True)
"""


def test_containers_share_a_folder(tmp_path):
    apart = ["unshare", "--pid", "--fork"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system makes no namespaces of processes")
    command = [*apart, sys.executable, "-c", CLAIMS, str(tmp_path)]
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    jobs = [subprocess.Popen([*command, str(n)], text=True, **pipes) for n in range(8)]
    for job in jobs:
        job.stdin.write("\n")
        job.stdin.flush()
    assert [job.communicate()[1] for job in jobs] == [""] * 8
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_file_of_equal_content_is_left_alone(path):
    write_atomic(path, "one")
    before = path.stat().st_ino
    write_atomic(path, "one")
    assert path.stat().st_ino == before
    write_atomic(path, "two")
    assert path.read_text() == "two"
