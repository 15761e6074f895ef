"""T2: with q = 0 and v = identity the output row is allowed / num_allowed: the mask itself."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, attend, weights
from suffice.ops import OPS
from suffice.patterns import Causal, Full
from suffice.testing import assert_close

from .mechanisms import D_MODEL, LENGTH, NAMES, SPECS

CALLS = [
    (impl, heads)
    for impl in ("auto", *OPS)
    for heads in ((1, 1), (4, 2))
    if impl != "folded" or heads[0] > heads[1]  # folded refuses heads that share nothing
]
SIZES = [(1, 9), (3, 9), (9, 9), (8, 9), (5, 2)]


def expected(queries, keys):
    allowed = torch.tensor(
        [[j <= i + keys - queries for j in range(keys)] for i in range(queries)]
    ).double()
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("impl", "heads"), CALLS)
def test_read_out_through_attend(sizes, impl, heads):
    queries, keys = sizes
    q = torch.zeros(2, heads[0], queries, keys, dtype=torch.float64)
    k = torch.randn(2, heads[1], keys, keys, dtype=torch.float64)
    v = torch.eye(keys, dtype=torch.float64).expand(2, heads[1], keys, keys)
    out = attend(q, k, v, pattern=Causal(), impl=impl)
    want = expected(queries, keys).expand_as(out)
    assert_close(out, want)
    assert torch.equal(out > 0, want > 0)
    assert_close(weights(q, k, pattern=Causal()), want)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("impl", ["auto", "reference", "fused", "matmul"])
def test_read_out_through_layers(name, impl):
    """W_Q = 0 makes every weight equal; what an output depends on is then read from gradients."""
    spec = SPECS[name]
    layer = Attention(spec, impl=impl, dtype=torch.float64)
    with torch.no_grad():
        layer.q_proj.weight.zero_()
        layer.q_proj.bias.zero_()
    x = torch.eye(LENGTH, D_MODEL, dtype=torch.float64)[None]
    pattern = Causal() if spec.pattern.causal else Full()
    allowed = pattern.mask(LENGTH, LENGTH).double()
    want = allowed / allowed.sum(-1, keepdim=True)
    assert_close(layer.weights(x), want.expand(1, 3, LENGTH, LENGTH))
    x = torch.randn(1, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    for t in range(LENGTH):
        (slope,) = torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)
        assert torch.equal(slope[0].abs().amax(-1) > 0, allowed[t] > 0)
