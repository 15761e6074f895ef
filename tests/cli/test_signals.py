"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from suffice.models import folder
from tests.kills.cases import CASES, _inputs

SEND = """
import os, signal, sys
from suffice.cli import main
from suffice.utils.progress import Display

step, name = Display.step, sys.argv.pop()
signal.signal(getattr(signal, name), signal.SIG_DFL)  # under nohup the tests ignore one of them

def send(self, done, total):
    step(self, done, total)
    if done == 3:
        os.kill(os.getpid(), getattr(signal, name))

Display.step = send
main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_training_that_is_asked_to_end_is_resumed(name, tmp_path):
    _inputs(tmp_path)
    words = [word for word in CASES["train"].words if word != "--quiet"]
    done = _run(SEND, words, tmp_path, name)
    assert done.returncode == 130, done.stderr
    assert "interrupted. Finished work is kept" in done.stderr
    resumed = _run("from suffice.cli import main; main()", [*words, "--resume"], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert folder.load(tmp_path / "out")[2]["measured"]["step"] == 6


def _run(code, words, place, *more):
    return subprocess.run(
        [sys.executable, "-c", code, *words, *more],
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
