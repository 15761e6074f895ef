"""Mixtures of experts through the commands: converted, quantised, sampled; exports are refused."""

from __future__ import annotations

import pytest

from suffice.layers import Experts
from suffice.models import LMConfig, folder
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec import AttentionSpec
from suffice.testing import drawn
from suffice.text import Characters

TEXT = "to be or not to be, that is the question. " * 60
EXPERTS = Experts(num_experts=4, top_k=2, width=16, shared_width=16, dense=(0,))
SIZES = {"length": 12, "d_model": 32, "depth": 2, "mlp_width": 32, "positions": "none"}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    tokenizer = Characters.of([TEXT])
    sizes = {**SIZES, "activation": "swiglu", "norm": "rms", "bias": False, "experts": EXPERTS}
    config = LMConfig(**sizes, vocabulary_size=tokenizer.vocabulary_size)
    spec = AttentionSpec(d_model=32, num_heads=4, pattern=Causal(), position=Rope())
    lm = drawn(config.build(spec), seed=1).eval()
    folder.save(tmp_path / "run", lm, tokenizer, corpus=str(tmp_path / "text.txt"))
    return lm


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


@pytest.mark.parametrize("name", ["gpt_oss", "mixtral", "qwen3_moe", "deepseek_v3"])
def test_checkpoints_of_transformers_become_folders_that_generate(suffice, tmp_path, name):
    pytest.importorskip("transformers")
    from benchmarks.released import inputs, saved

    theirs = saved(name, tmp_path / "theirs")
    Characters.of(["abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"]).save(tmp_path / "theirs")
    done = suffice("convert", "theirs", "--to", "keep", "--quiet", "--out", "ours")
    assert (done.exit_code, done.stderr) == (0, "")
    lm, _, _ = folder.load("ours")
    assert (lm(inputs(name)) - theirs(inputs(name)).logits).abs().max() < 1e-4
    done = suffice("generate", "ours", "--prompt", "abc", "--tokens", 6)
    assert done.exit_code == 0, done.stderr
