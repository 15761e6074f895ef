"""torch.compile takes every preset whole, and few graphs serve many lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch._dynamo.testing

from suffice import Attention, AttentionSpec
from suffice.kernels import Elu
from suffice.ops import OPS
from suffice.patterns import Causal, Window
from tests.acceptance.mechanisms import PRESET_KINDS, spec_of, takes

SLOW = pytest.mark.slow
STRUCTURES = {
    "standard",
    "causal-super_attention",
    "linformer",
    "causal-mla",
    "causal-infini",
    "causal-differential",
    "causal-mistral",
    "bigbird",
    "causal-rfa",
}
"""Of the presets, one for each path that a layer can take; the others are marked slow."""
LENGTHS = (5, 6, 9, 14, 15, 24)
PLAIN = AttentionSpec(d_model=32, num_heads=4, pattern=Causal())
SPECS = dict.fromkeys((name for name, op in OPS.items() if op.trains and name != "flex"), PLAIN) | {
    "folded": replace(PLAIN, num_kv_heads=2),
    "blocked": replace(PLAIN, pattern=Window(4) & Causal()),
    "scan": replace(PLAIN, kernel=Elu()),
    "native_scan": replace(PLAIN, kernel=Elu()),
}
"""What each op of a CPU that learns is compiled for; native_decode is in test_native_decode.py."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(kind: str) -> Attention:
    name, causal = PRESET_KINDS[kind]
    return Attention(spec_of(name, causal=causal, d_model=32, num_heads=4, length=32)).eval()


def compiled_as_eager(layer: Attention, **masks: torch.Tensor) -> None:
    x = torch.randn(2, 9, 32)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, **masks), layer(x, **masks), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [k if k in STRUCTURES else pytest.param(k, marks=SLOW) for k in PRESET_KINDS]
)
def test_one_graph_equals_eager(kind):
    layer = build(kind)
    compiled_as_eager(layer)
    masks = {"valid": torch.rand(2, 9) < 0.7}
    if takes(layer.spec, {"segments"}):
        masks["segments"] = (torch.arange(9) // 4).expand(2, 9)
    compiled_as_eager(layer, **masks)


@pytest.mark.parametrize("impl", SPECS)
def test_every_op_is_compiled_whole(impl):
    """Forward and backward, as a layer in training runs them."""
    layer = Attention(SPECS[impl], impl=impl)
    x = torch.randn(2, 9, 32)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    sources = [*layer.parameters()]
    want, got = (torch.autograd.grad(call(x).square().sum(), sources) for call in (layer, compiled))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "impl",
    [
        i if i in ("blocked", "native", "native_scan") else pytest.param(i, marks=SLOW)
        for i in SPECS
    ],
)
def test_many_lengths_need_few_graphs(impl):
    layer = Attention(SPECS[impl], impl=impl).eval()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in LENGTHS:
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-6)
    assert counter.frame_count <= 4


@pytest.mark.parametrize(
    "kind", ["causal-super_attention", pytest.param("causal-bigbird", marks=SLOW)]
)
def test_many_lengths_of_a_preset_need_few_graphs(kind):
    layer = build(kind)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in LENGTHS:
        compiled(torch.randn(2, length, 32))
    assert counter.frame_count <= 4
