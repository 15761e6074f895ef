"""Two gloo processes train a language model like one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from suffice import checkpoint
from suffice.train.language import evaluate_lm, fit_lm

from .texts import files, settings, tiny

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
    import os, signal, sys
    from dataclasses import asdict
    from pathlib import Path
    import torch
    from suffice import checkpoint
    from suffice.text import TokenFile
    from suffice.train import Interrupted, Silent, processes
    from suffice.train.language import evaluate_lm, fit_lm
    from tests.train.language.texts import settings, tiny

    out = Path(sys.argv[1])
    texts = [TokenFile(out / name) for name in ("train.bin", "validation.bin")]

    with processes("cpu") as both:
        assert both.world_size == 2

        def done(name, model, run):
            found = evaluate_lm(model, texts[1], length=12, batch_size=2)
            if both.is_main:
                looks = [list(asdict(one).values())[:-1] for one in run.measured]
                checkpoint.save(out / name, model.state_dict(), {"looks": looks, "found": found})

        for name, changes in (("one", {}), ("cut", {"accumulate": 2, "checkpointing": True})):
            model = tiny(seed=both.rank, dropout=0.3, dtype=torch.float64)
            done(name, model, fit_lm(model, *texts, settings(**changes), seed=5))

        class Pressing(Silent):
            def __init__(self):
                self.count = 0

        model = tiny(dropout=0.3, dtype=torch.float64)
        calls = []
        def press(*_):
            calls.append(0)
            if model.training and both.rank == 1 and len(calls) == 7:
                os.kill(os.getpid(), signal.SIGINT)
        model.register_forward_hook(press)
        place = out / "run"
        try:
            fit_lm(model, *texts, settings(), seed=5, checkpoint=place, save_every=0.0)
        except Interrupted as stopped:
            (out / f"stopped{both.rank}").write_text(str(stopped.step))
        model = tiny(seed=3, dropout=0.3, dtype=torch.float64)
        run = fit_lm(model, *texts, settings(), seed=5, checkpoint=place, resume=True)
        done("resumed", model, run)
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What two gloo processes made of the same work."""
    folder = tmp_path_factory.mktemp("two")
    files(folder)
    (folder / "work.py").write_text(textwrap.dedent(SCRIPT))
    environment = {n: v for n, v in os.environ.items() if not n.startswith("COV")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(folder / "work.py"), str(folder)],
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", ["one", "cut", "resumed"])
def test_two_processes_train_like_one(out, tmp_path, name):
    texts = files(tmp_path)
    model = tiny(dropout=0.3, dtype=torch.float64)
    changes = {"accumulate": 2} if name == "cut" else {}
    run = fit_lm(model, *texts, settings(**changes), seed=5)
    tensors, facts = checkpoint.load(out / name, model.state_dict())
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors[key], tensor, rtol=1e-5, atol=1e-7)
    for ours, look in zip(facts["looks"], run.measured, strict=True):
        assert ours == pytest.approx(list(asdict(look).values())[:-1], rel=1e-6)
    found = evaluate_lm(model, texts[1], length=12, batch_size=2)
    assert facts["found"] == pytest.approx(found, rel=1e-6)


def test_ctrl_c_on_one_of_two_stops_both_after_one_step(out):
    steps = {(out / f"stopped{rank}").read_text() for rank in range(2)}
    assert len(steps) == 1
    assert 1 <= int(steps.pop()) < 6
