"""Two processes on the CPU, as torchrun starts them, train one language model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suffice.models import checkpoint
from suffice.models import folder as models

from .test_train import TEXT, looks
from .test_train import WORDS as SIZES

PROGRAM = "from suffice.cli import main; main()"


def start(*words, folder, **environment):
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **environment},
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "[rank" not in err, "no process ends with a traceback of its own"
    return process.returncode, out, err


def run_two(*words, folder):
    """Run two processes with torchrun's variables but without its agent; both exit with 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    shared |= {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    ranks = [
        start("-c", PROGRAM, *words, folder=folder, RANK=rank, LOCAL_RANK=rank, **shared)
        for rank in ("0", "1")
    ]
    (code, out, err), (other_code, other_out, other_err) = map(finish, ranks)
    assert (code, other_code) == (0, 0), err + other_err
    assert (other_out, other_err) == ("", ""), "only the first process prints"
    return out


def test_a_comparison_names_its_own_ways_to_many_processes(suffice, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    done = suffice("compare", "--seeds", 1)
    assert done.exit_code == 2
    assert "--jobs" in done.message
    assert not Path("runs").exists()


@pytest.mark.slow
def test_two_processes_with_sharded_weights_leave_the_model_of_one(suffice, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ("train", "--data", str(text), *SIZES, "--quiet")
    out = run_two(*words, "--shard", "--out", "parts", folder=tmp_path)
    assert out.count("model: parts") == 1
    facts = checkpoint.metadata(tmp_path / "parts" / "checkpoint.safetensors")
    assert (tmp_path / "parts" / f"checkpoint.safetensors.shards.{facts['shards']}").is_dir()
    single = suffice(*words, "--out", "single").stdout
    for ours, theirs in zip(looks("parts"), looks("single"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    lm, tokenizer, _ = models.load("parts")
    tokens = torch.tensor([tokenizer.encode("the cat sat")])
    other = models.load("single")[0]
    torch.testing.assert_close(lm(tokens), other(tokens), rtol=1e-4, atol=1e-5)
    texts = [
        printed.split(f"model: {name}\n\n")[1].split("\n\nnext:")[0]
        for name, printed in (("parts", out), ("single", single))
    ]
    assert len(texts[0].strip()) == len(texts[1].strip()) > 0
    assert suffice("train", "--resume", "--out", "parts", "--quiet").exit_code == 0
