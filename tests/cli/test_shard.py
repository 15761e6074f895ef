"""`suffice train --shard` on two processes, started by torchrun, on the CPU."""

from __future__ import annotations

import pytest
import torch

from suffice import checkpoint
from suffice.models import folder as models

from .test_torchrun import finish, launch
from .test_train import TEXT, WORDS, looks


def test_two_processes_with_parts_leave_the_model_of_one(suffice, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ("train", "--data", str(text), *WORDS, "--quiet")
    code, out, err = finish(launch(*words, "--shard", "--out", "parts", folder=tmp_path))
    assert code == 0, err
    assert out.count("model: parts") == 1
    facts = checkpoint.metadata(tmp_path / "parts" / "checkpoint.safetensors")
    assert (tmp_path / "parts" / f"checkpoint.safetensors.shards.{facts['shards']}").is_dir()
    done = suffice(*words, "--out", "whole")
    for ours, theirs in zip(looks("parts"), looks("whole"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    lm, tokenizer, _ = models.load("parts")
    tokens = torch.tensor([tokenizer.encode("the cat sat")])
    other = models.load("whole")[0]
    torch.testing.assert_close(lm(tokens), other(tokens), rtol=1e-4, atol=1e-5)
    assert len(out.split("model: parts\n\n")[1]) == len(done.stdout.split("model: whole\n\n")[1])
    assert suffice("train", "--resume", "--out", "parts", "--quiet").exit_code == 0
