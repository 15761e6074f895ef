"""One launch of two gloo processes, for every test that reads what they made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import two_processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def made_by_two(tmp_path_factory) -> Path:
    """The folder in which two processes left one folder for each of `two_processes.PARTS`."""
    folder = tmp_path_factory.mktemp("two")
    two_processes.prepare(folder)
    environment = {n: v for n, v in os.environ.items() if not n.startswith("COV")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "-m", "tests.train.two_processes", str(folder)],
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder
