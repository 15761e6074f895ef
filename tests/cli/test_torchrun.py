"""Two processes, started by torchrun, on the CPU: the result of one, and one voice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORDS = ("compare", "--mechanisms", "standard,super_attention", "--seeds", "1", "--epochs", "3")
TEST_ROWS = 539
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launch(*words, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.Popen(
        [*LAUNCH, "-m", "suffice", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "[rank" not in err, "no process ends with a traceback of its own"
    return process.returncode, out, err


def interrupted(folder):
    """Start, and press Ctrl-C as soon as the first cell is begun."""
    process = launch(*WORDS, "--out", "both", folder=folder)
    deadline = time.monotonic() + 100
    while not (folder / "both" / "models").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    return finish(process)


def test_two_processes_give_the_result_of_one(suffice, brief, tmp_path):
    code, out, err = interrupted(tmp_path)
    assert code != 0
    assert out == ""
    assert err.count("interrupted. Finished work is kept. Resume with:") == 1
    words = " ".join(err.split())
    assert f"--nproc-per-node 2 -m suffice {' '.join(WORDS)} --out both --resume" in words

    code, out, err = finish(
        launch(*WORDS, "--out", "both", "--resume", "--json", "--quiet", folder=tmp_path)
    )
    assert code == 0, err
    both = json.loads(out)["cells"]  # one document: only the first process prints
    single = suffice(*WORDS, "--out", "single", "--json", "--quiet")
    alone = json.loads(single.stdout)["cells"]
    assert len(both) == len(alone) == 2
    for ours, theirs in zip(both, alone, strict=True):
        for name in ("mechanism", "seed", "parameters_model", "flops", "best_epoch"):
            assert ours[name] == theirs[name]
        for name in ("train_loss", "test_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
        assert abs(ours["test_accuracy"] - theirs["test_accuracy"]) * TEST_ROWS < 1.5
        assert len(ours["epochs"]) == len(theirs["epochs"]) == 3
        for epoch, other in zip(ours["epochs"], theirs["epochs"], strict=True):
            for name in ("train_loss", "validation_loss"):
                assert epoch[name] == pytest.approx(other[name], rel=1e-5)
    found = {path.name for path in (tmp_path / "both").iterdir()}
    assert found > {path.name for path in Path("single").iterdir()}
    assert "report.html" in found
    assert list((tmp_path / "both").rglob(".*.part")) == []


def test_an_error_of_the_first_process_ends_all_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, out, err = finish(launch(*WORDS, "--out", "file", folder=tmp_path))
    assert code != 0
    assert out == ""
    # on a machine so loaded that the first has not left in time, the second speaks of it
    assert err.count("error: cannot write in file (") == 1
    assert err.count("error: ") == 1 + err.count("error: process 0 failed: cannot write in file ")
