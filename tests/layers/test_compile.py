"""torch.compile takes every preset whole, and few graphs serve many lengths."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing

from suffice import Attention, preset
from suffice.presets import PRESETS, needs_length

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(name: str, causal: bool) -> Attention:
    options = {"length": 32} if needs_length(name) else {}
    return Attention(preset(name, 32, 4, causal=causal, **options)).eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_one_graph_equals_eager(name, causal):
    layer = build(name, causal)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x, valid = torch.randn(2, 9, 32), torch.rand(2, 9) < 0.7
    segments = (torch.arange(9) // 4).expand(2, 9)
    for given in ({}, {"valid": valid}, {"segments": segments}):
        torch.testing.assert_close(compiled(x, **given), layer(x, **given), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["standard", "super_attention", "gqa"])
def test_twenty_lengths_need_few_graphs(name):
    layer = build(name, causal=True)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in range(5, 25):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-6)
    assert counter.frame_count <= 3
