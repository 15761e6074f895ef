"""Two processes on the CPU, as torchrun starts them: the result of one, and one voice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from suffice.models import checkpoint
from suffice.models import folder as models

from .test_train import TEXT, looks
from .test_train import WORDS as SIZES

WORDS = ("compare", "--mechanisms", "standard,super_attention", "--seeds", "1", "--epochs", "2")
TEST_ROWS = 539
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
PROGRAM = """
from suffice.cli import main
from suffice.measure import compare, report

compare.ROUNDS, compare.SAMPLE_SECONDS = 2, 1e-4
report.write_report = lambda results, verdict, folder, *_, **__: folder / "report.html"
main()
"""


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


def interrupt(folder):
    """Start a comparison and press Ctrl-C as soon as the first cell is begun."""
    process = start(*TORCHRUN, "-m", "suffice", *WORDS, "--out", "both", folder=folder)
    deadline = time.monotonic() + 100
    while not (folder / "both" / "models").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    return finish(process)


def test_two_processes_give_the_result_of_one(suffice, brief, tmp_path):
    code, out, err = interrupt(tmp_path)
    assert code != 0
    assert out == ""
    assert err.count("interrupted. Finished work is kept. Resume with:") == 1
    words = " ".join(err.split())
    assert f"--nproc-per-node 2 -m suffice {' '.join(WORDS)} --out both --resume" in words

    options = ("--json", "--quiet")
    out = run_two(*WORDS, "--out", "both", "--resume", *options, folder=tmp_path)
    both = json.loads(out)["results"]["cells"]  # one document
    alone = json.loads(suffice(*WORDS, "--out", "single", *options).stdout)["results"]["cells"]
    assert len(both) == len(alone) == 2
    for ours, theirs in zip(both, alone, strict=True):
        for name in ("mechanism", "seed", "parameters_model", "flops", "best_epoch"):
            assert ours[name] == theirs[name]
        for name in ("train_loss", "test_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
        assert abs(ours["test_accuracy"] - theirs["test_accuracy"]) * TEST_ROWS < 1.5
        assert len(ours["epochs"]) == len(theirs["epochs"]) == 2
        for epoch, other in zip(ours["epochs"], theirs["epochs"], strict=True):
            for name in ("train_loss", "validation_loss"):
                assert epoch[name] == pytest.approx(other[name], rel=1e-5)
    written = {path.name for path in (tmp_path / "both").iterdir()}
    alone = {path.name for path in Path("single").iterdir()} - {"report.html", "execution.json"}
    assert written >= alone
    assert list((tmp_path / "both").rglob(".*.part")) == []


def test_an_error_of_the_first_process_ends_all_with_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    words = ("-m", "suffice", *WORDS, "--out", "file")
    code, out, err = finish(start(*TORCHRUN, *words, folder=tmp_path))
    assert code != 0
    assert out == ""
    # on a machine so loaded that the first has not left in time, the second speaks of it
    assert err.count("error: cannot write in file (") == 1
    assert err.count("error: ") == 1 + err.count("error: process 0 failed: cannot write in file ")


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
