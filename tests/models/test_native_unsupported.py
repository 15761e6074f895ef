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
    ("spec", "named"),
    [
        (causal(kernel=Elu()), "Elu"),
        (preset("infini", 24, 4, segment=4), "Infini"),
        (causal(norm=QKVNorm()), "QKVNorm"),
        (causal(combine=Differential(), kernel=Softmax(sink=True)), "Softmax"),
        (causal(encoder=MLA(rank=8, rotary_dim=4), position=Rope()), "MLA"),
        (causal(num_heads=1, head_dim=578), "578 features, 1 on each key"),
        (causal(num_heads=129, num_kv_heads=1, head_dim=2), "2 features, 129 on each key"),
        (causal(pattern=Causal() & Dilated(4, 2)), "Dilated(size=4, dilation=2)"),
        (causal(pattern=Causal() & (Strided(4) | Global(1))), "Global(tokens=1)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@needs_kernels
def test_unsupported_compositions(spec, named):
    lm = built(spec, positions="none")
    assert named in unsupported(lm, Dynamic())
    mixed = lm.config.build([SPEC, spec])
    assert unsupported(mixed, Dynamic()).startswith("layer 1: ")
    assert named in unsupported(mixed, Dynamic())


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


def mlp(lm):
    return lm.blocks[0].mlp


@needs_kernels
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda lm: mlp(lm).up.register_forward_hook(lambda *_: None), "blocks.0.mlp.up has hooks"),
        (lambda lm: lm.register_forward_pre_hook(lambda *_: None), " has hooks"),
        (lambda lm: setattr(mlp(lm), "forward", lambda x: x), "blocks.0.mlp has hooks"),
        (lambda lm: setattr(mlp(lm), "up", nn.Linear(24, 24)), "blocks.0.mlp.up is a Linear"),
        (lambda lm: setattr(mlp(lm), "activation", nn.Tanh()), "activation is a Tanh"),
        (lambda lm: setattr(mlp(lm), "activation", packed(24, 24)), "is a PackedLinear"),
        (lambda lm: setattr(mlp(lm), "activation", nn.GELU("tanh")), "GELU(approximate='tanh')"),
        (lambda lm: setattr(mlp(lm), "more", nn.Identity()), "blocks.0.mlp.more is a Identity"),
        (lambda lm: setattr(lm, "norm", nn.RMSNorm(24)), "norm is a RMSNorm"),
        (lambda lm: setattr(lm.norm, "eps", 1e-3), "eps=0.001"),
        (lambda lm: setattr(mlp(lm).up, "weight", nn.Parameter(torch.ones(4, 24))), "[4, 24]"),
        (
            lambda lm: setattr(mlp(lm), "up", packed(24, 8)),
            "mlp.up is a matrix of [8, 24]",
        ),
        (
            lambda lm: setattr(mlp(lm), "up", packed(24, 24).to("meta")),
            "blocks.0.mlp.up is on meta",
        ),
        (lambda lm: mlp(lm).to("meta"), "blocks.0.mlp.up is on meta"),
        (
            lambda lm: lm.blocks[1].attention.k_proj.double(),
            "attention.k_proj is torch.float64",
        ),
    ],
)
def test_changed_modules(change, named):
    lm = built(SPEC)
    change(lm)
    assert named in unsupported(lm, Dynamic())


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
