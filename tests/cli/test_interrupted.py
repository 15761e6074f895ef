"""Ctrl-C in the middle of a cell, in a process of its own, and the command it prints."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from .test_compare import timeless

WORDS = ("compare", "--mechanisms", "standard,super_attention", "--seeds", "1", "--epochs", "2")
STEPS = 17  # an epoch of the digits
PRESS = f"""
import os, signal, sys
from suffice.cli import main
from suffice.progress import Display

done, step = [], Display.step

def press(self, *numbers):
    step(self, *numbers)
    done.append(numbers)
    if len(done) == {2 * STEPS + STEPS + 5}:
        os.kill(os.getpid(), signal.SIGINT)

Display.step = press
sys.argv[0] = sys.argv.pop(1)
main()
"""


def start(command, folder):
    return subprocess.run(
        command,
        cwd=folder,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "COLUMNS": "80"},
    )


def test_the_printed_command_gives_the_cells_of_an_uninterrupted_run(suffice, brief, tmp_path):
    program = Path(sys.executable).with_name("suffice")
    done = start([sys.executable, "-c", PRESS, program, *WORDS, "--out", "a folder"], tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    first, second, command = done.stderr.splitlines()[-3:]
    assert (first, second) == ("", "interrupted. Finished work is kept. Resume with:")
    assert command.startswith("  ")
    assert shlex.split(command)[1:] == [*WORDS, "--out", "a folder", "--resume"]
    folder = tmp_path / "a folder"
    assert [path.stem for path in folder.glob("cells/*")] == ["standard-h4-s0"]
    (checkpoint,) = folder.glob("checkpoints/*")
    assert checkpoint.stem == "super_attention-h4-s0"

    done = start(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report: a folder/report.html" in done.stdout
    assert list(folder.glob("checkpoints/*")) == []
    assert suffice(*WORDS, "--out", "whole", "--json").exit_code == 0
    assert len(timeless(folder)) == 2
    assert timeless(folder) == timeless("whole")
