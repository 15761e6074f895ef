"""Which models native code decodes, and why not the others."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from suffice import AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import MLA, QKVNorm
from suffice.kernels import Elu, Softmax
from suffice.layers import Experts
from suffice.layers.packed import PackedLinear, Scheme
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import LowRank
from suffice.models import native_decoder
from suffice.models.native_decoder import unsupported
from suffice.models.packed import unpack
from suffice.ops.native import library
from suffice.patterns import Causal, Dilated, Full, Global, Strided, Window
from suffice.positions import Rope
from suffice.quantise import quantise
from tests.models.native_cases import built
from tests.ops.native.codings import needs_kernels

SPEC = preset("standard", 24, 4, causal=True)


def packed(inputs, outputs):
    return PackedLinear(outputs, inputs, Scheme(bits=8, group=8), bias=True)


def causal(**changes):
    return AttentionSpec(**{"d_model": 24, "num_heads": 4, "pattern": Causal(), **changes})


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (causal(kernel=Elu()), "Elu keeps sums of features"),
        (preset("infini", 24, 4, segment=4), "Infini compresses the past"),
        (causal(norm=QKVNorm()), "norm QKVNorm is not supported by native decoding"),
        (
            causal(combine=Differential(), kernel=Softmax(sink=True)),
            "kernel Softmax is not supported by native decoding",
        ),
        (
            causal(encoder=MLA(rank=8, rotary_dim=4), position=Rope()),
            "encoder MLA is not supported by native decoding",
        ),
        (causal(num_heads=1, head_dim=578), "heads of 578 features, 1 on each key, are too large"),
        (
            causal(num_heads=129, num_kv_heads=1, head_dim=2),
            "heads of 2 features, 129 on each key, are too large",
        ),
        (
            causal(pattern=Causal() & Dilated(4, 2)),
            "And(parts=(Causal(), Dilated(size=4, dilation=2))) is neither causal nor a causal "
            "window",
        ),
        (
            causal(pattern=Causal() & (Strided(4) | Global(1))),
            "And(parts=(Causal(), Or(parts=(Strided(stride=4), Global(tokens=1))))) is neither "
            "causal nor a causal window",
        ),
    ],
    ids=[
        "sums",
        "past",
        "norm",
        "combine",
        "encoder",
        "wide",
        "shared",
        "dilated",
        "sinks",
    ],
)
@needs_kernels
def test_unsupported_compositions(spec, reason):
    lm = built(spec, positions="none")
    assert unsupported(lm, Dynamic()) == f"layer 0: {reason}"
    mixed = lm.config.build([SPEC, spec])
    assert unsupported(mixed, Dynamic()) == f"layer 1: {reason}"


def test_unsupported_mixings():
    rank = AttentionSpec(d_model=24, num_heads=4, pattern=Full(), mixing=LowRank(length=8, rank=2))
    assert native_decoder._unsupported_layer(rank, Dynamic()) == "LowRank sums keys"
    spec = preset("toeplitz_super", 24, 4, causal=True)
    reason = "ToeplitzAlignment reads values, which Quantised rounds"
    assert native_decoder._unsupported_layer(spec, Quantised()) == reason


@needs_kernels
@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (Quantised(bits=4, group=3), "two 4-bit codes share a byte, which heads of 6 features"),
        (Quantised(Rolling(9, sinks=5), block=4), "5 sinks are more than a block of 4"),
    ],
    ids=["odd", "sinks"],
)
def test_unsupported_memories(memory, reason):
    assert unsupported(built(SPEC), memory).startswith(f"layer 0: {reason}")
    assert unsupported(built(SPEC), replace(memory, bits=8, group=6, block=8)) is None


@needs_kernels
def test_codes_of_heads_of_two_widths():
    lm = built(causal(combine=Differential()), positions="none")
    assert unsupported(lm, Quantised()).startswith(
        "layer 0: codes are read of heads of one width of at most 512, not keys of 3 and values"
    )


@needs_kernels
def test_other_models():
    class Mine(type(built(SPEC))):
        pass

    lm = built(SPEC)
    assert unsupported(lm, Dynamic()) is None
    assert unsupported(nn.Linear(2, 2), Dynamic()) == "Linear is not an LM"
    assert unsupported(Mine(lm.config, SPEC), Dynamic()) == "Mine is not an LM"
    assert unsupported(lm.to("meta"), Dynamic()) == "the model is on meta"
    experts = Experts(num_experts=2, top_k=1, width=24)
    mixed = replace(lm.config, activation="swiglu", mlp_width=24, experts=experts).build(SPEC)
    assert unsupported(mixed, Dynamic()).startswith("mixtures of experts are not supported")


@needs_kernels
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda lm: lm.blocks[1].mlp.up.register_forward_hook(lambda *_: None),
            "blocks.1.mlp.up has hooks, which would not be called",
        ),
        (
            lambda lm: lm.register_forward_pre_hook(lambda *_: None),
            " has hooks, which would not be called",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp, "up", nn.Linear(24, 24)),
            "blocks.0.mlp.up is a Linear, which the model was not built with",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp, "activation", nn.Tanh()),
            "blocks.0.mlp.activation is a Tanh, which the model was not built with",
        ),
        (
            lambda lm: setattr(lm.blocks[1].mlp, "more", nn.Identity()),
            "blocks.1.mlp.more is a Identity, which the model was not built with",
        ),
        (
            lambda lm: setattr(lm, "norm", nn.RMSNorm(24)),
            "norm is a RMSNorm, which the model was not built with",
        ),
        (
            lambda lm: setattr(lm.norm, "eps", 1e-3),
            "norm is LayerNorm((24,), eps=0.001, elementwise_affine=True, bias=True), not ((24,), "
            "eps=1e-05, ",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp, "activation", nn.GELU("tanh")),
            "blocks.0.mlp.activation is GELU(approximate='tanh'), not (approximate='none')",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp.up, "weight", nn.Parameter(torch.ones(4, 24))),
            "blocks.0.mlp.up has a weight of [4, 24], not of its config",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp, "up", packed(24, 8)),
            "blocks.0.mlp.up is a matrix of [8, 24]",
        ),
        (
            lambda lm: setattr(lm.blocks[0].mlp, "activation", packed(24, 24)),
            "blocks.0.mlp.activation is a PackedLinear, which the model was not built with",
        ),
        (
            lambda lm: setattr(lm.blocks[1].mlp, "forward", lambda x: x),
            "blocks.1.mlp has hooks, which would not be called",
        ),
        (
            lambda lm: setattr(lm.blocks[1].mlp, "up", packed(24, 24).to("meta")),
            "blocks.1.mlp.up is on meta",
        ),
        (
            lambda lm: lm.blocks[0].attention.k_proj.double(),
            "blocks.0.attention.k_proj is torch.float64; kernels read float32, float16 and",
        ),
        (lambda lm: lm.blocks[0].mlp.to("meta"), "blocks.0.mlp.up is on meta"),
    ],
)
def test_changed_modules(change, reason):
    lm = built(SPEC)
    change(lm)
    assert unsupported(lm, Dynamic()).startswith(reason)


def test_the_reason_for_missing_kernels(monkeypatch):
    monkeypatch.setattr(library, "_loaded", lambda: (None, "they were not built"))
    assert unsupported(built(SPEC), Dynamic()) == "they were not built"


def test_other_patterns():
    for pattern in (
        Window(5),
        (Window(5) | Global(2)) & Window(9) & Causal(),
        (Window(5) | Strided(3)) & Causal(),
    ):
        spec = replace(SPEC, pattern=pattern)
        assert repr(pattern) in native_decoder._unsupported_layer(spec, Dynamic())


@needs_kernels
def test_sinks_need_a_memory_that_keeps_them():
    lm = built(replace(SPEC, pattern=(Window(5) | Global(2)) & Causal()))
    for memory in (Dynamic(), Static(9), Rolling(5, sinks=2), Rolling(8, sinks=3)):
        assert unsupported(lm, memory) is None
    for memory in (Rolling(4, sinks=2), Rolling(5, sinks=1), Quantised()):
        assert "the pattern sees 2 first positions, of which " in unsupported(lm, memory)


@needs_kernels
@pytest.mark.parametrize("sizes", [{}, {"norm": "rms"}, {"activation": "swiglu"}, {"tied": False}])
def test_models_as_built_are_supported(sizes):
    for name in ("gqa", "super_attention", "toeplitz_super"):
        options = {"length": 64} if name == "super_attention" else {}
        lm = built(preset(name, 24, 4, causal=True, **options), dropout=0.5, **sizes)
        lm.dropout.p = 0.25
        for one in (lm, lm.bfloat16().train(), copy.deepcopy(lm).requires_grad_(False)):
            assert unsupported(one, Dynamic()) is None
        quantise(lm, 8)
        assert unsupported(lm, Dynamic()) is None
        unpack(lm)
        assert unsupported(lm, Dynamic()) is None


@needs_kernels
def test_the_check_draws_no_random_number():
    lm = built(SPEC)
    native_decoder._as_built.cache_clear()
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    assert unsupported(lm, Dynamic()) is None
    assert torch.equal(torch.rand(2), want)
