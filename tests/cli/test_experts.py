"""Mixtures of experts through the commands: converted, quantised, sampled; exports are refused."""

from __future__ import annotations

import pytest

from suffice.layers import Experts
from suffice.models import folder
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec import AttentionSpec
from tests.cli.models import written

EXPERTS = Experts(num_experts=4, top_k=2, width=16, shared_width=16, dense=(0,))


@pytest.fixture
def run(tmp_path):
    spec = AttentionSpec(d_model=32, num_heads=4, pattern=Causal(), position=Rope())
    llama = {"positions": "none", "activation": "swiglu", "norm": "rms", "bias": False}
    return written(tmp_path, spec, depth=2, experts=EXPERTS, **llama)


@pytest.mark.parametrize("target", ["gqa:2", "efficient"])
def test_converted_quantised_and_sampled(suffice, run, target):
    done = suffice("convert", "run", "--to", target, "--quiet", "--tokens", 500, "--out", "small")
    assert (done.exit_code, done.stderr) == (0, "")
    done = suffice("quantise", "small", "--bits", 4, "--out", "packed")
    assert done.exit_code == 0, done.stderr
    packed, _, _ = folder.load("packed")
    assert packed.config == run.config
    kinds = {n: type(m).__name__ for n, m in packed.blocks[1].mlp.named_modules()}
    assert (kinds["experts.3.down"], kinds["router"]) == ("PackedLinear", "Linear")
    done = suffice("generate", "packed", "--prompt", "to be", "--tokens", 6)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("hf", "shared_width=16"),
        ("onnx", "a graph would compute all experts"),
        ("gguf", "mixtures of experts are not written to GGUF"),
    ],
)
def test_exports_refuse(suffice, run, form, reason):
    done = suffice("export", "run", "--format", form, "--out", "out.gguf")
    assert done.exit_code != 0
    assert reason in " ".join(done.stderr.split())


def test_advise_refuses(suffice, run):
    done = suffice("advise", "--task", "lm", "--checkpoint", "run")
    assert done.exit_code != 0
    assert "mixtures of experts" in " ".join(done.stderr.split())
