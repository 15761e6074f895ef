"""torch.export of layers and models, whatever the length of the example."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from suffice import Attention, AttentionSpec, preset
from suffice.kernels import Softmax
from suffice.models import LMConfig
from suffice.patterns import Causal
from suffice.positions import Alibi, Rope
from suffice.testing import assert_close, drawn

NAMES = ("differential", "efficient", "gqa", "linear", "mla", "mqa", "optimised", "qk_norm",
         "sliding_window", "standard", "super_attention", "xsa")  # fmt: skip
LENGTHS = (1, 2, 4, 5, 15, 16, 17, 32, 63, 65, 100)
LONGEST = 100
SIZES = {"d_model": 32, "num_heads": 4}
OWN = {
    "alibi": AttentionSpec(**SIZES, pattern=Causal(), position=Alibi()),
    "shared": AttentionSpec(**SIZES, num_kv_heads=1, pattern=Causal(), position=Rope()),
    "sink and cap": AttentionSpec(**SIZES, pattern=Causal(), kernel=Softmax(sink=True, cap=5.0)),
}


def spec_of(name):
    if name in OWN:
        return OWN[name]
    return preset(name, 32, 4, **({"length": 128} if name == "super_attention" else {}))


def exported(module, example):
    """Return the graph of a module for every length."""
    dynamic = ({1: Dim("length", min=1, max=LONGEST)},)
    with torch.no_grad():
        return export(module, (example,), dynamic_shapes=dynamic, strict=False).module()


@pytest.mark.parametrize(
    ("name", "length"),
    [(name, (6, 32)[number % 2]) for number, name in enumerate([*NAMES, *OWN])],
)
def test_one_graph_of_a_layer_serves_every_length(name, length):
    layer = drawn(Attention(spec_of(name)), seed=1).eval()
    graph = exported(layer, torch.randn(1, length, 32))
    with torch.no_grad():
        for n in LENGTHS:
            x = torch.randn(1, n, 32)
            assert_close(graph(x), layer(x), n=64 * LONGEST)


@pytest.mark.parametrize("length", [6, 32])
@pytest.mark.parametrize("name", ["standard", "gqa", "sliding_window", "shared"])
def test_one_graph_of_a_model_serves_every_length(name, length):
    spec = OWN.get(name) or preset(name, 32, 4, causal=True)
    config = LMConfig(vocabulary_size=23, length=LONGEST, d_model=32, depth=2, mlp_width=40)
    lm = drawn(config.build(spec), seed=1).eval()
    graph = exported(lm, torch.randint(23, (1, length)))
    with torch.no_grad():
        for n in LENGTHS:
            tokens = torch.randint(23, (1, n))
            assert_close(graph(tokens), lm(tokens), n=64 * LONGEST)
