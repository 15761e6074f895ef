"""Two gloo processes train a language model like one."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from suffice import checkpoint
from suffice.train.language import evaluate_lm, fit_lm

from .texts import files, settings, tiny


@pytest.fixture(scope="module")
def out(made_by_two):
    return made_by_two / "replicated"


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
    result = evaluate_lm(model, texts[1], length=12, batch_size=2)
    assert facts["result"] == pytest.approx(result, rel=1e-6)


def test_ctrl_c_on_one_of_two_stops_both_after_one_step(out):
    steps = {(out / f"stopped{rank}").read_text() for rank in range(2)}
    assert len(steps) == 1
    assert 1 <= int(steps.pop()) < 6
