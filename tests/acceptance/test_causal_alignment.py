"""T2: with q = 0 and v = identity the output row is allowed / num_allowed: the mask itself."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, attend, weights
from suffice.patterns import Causal
from suffice.testing import assert_close

from .mechanisms import D_MODEL, LENGTH, SPECS, accepting, named, ops_of

SIZES = [(1, 9), (3, 9), (9, 9), (8, 9), (5, 2)]
CALLS = [
    (impl, heads)
    for heads in ((1, 1), (4, 2))
    for impl in ("auto", *accepting(9, 9, heads=heads, widths=(9, 9), pattern=Causal()))
]


def expected(queries, keys):
    allowed = torch.tensor(
        [[j <= i + keys - queries for j in range(keys)] for i in range(queries)]
    ).double()
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize(("impl", "heads"), CALLS)
def test_read_out_through_attend(impl, heads):
    for queries, keys in SIZES:
        q = torch.zeros(2, heads[0], queries, keys, dtype=torch.float64)
        k = torch.randn(2, heads[1], keys, keys, dtype=torch.float64)
        v = torch.eye(keys, dtype=torch.float64).expand(2, heads[1], keys, keys)
        with named(queries, keys):
            out = attend(q, k, v, pattern=Causal(), impl=impl)
            want = expected(queries, keys).expand_as(out)
            assert_close(out, want)
            assert torch.equal(out > 0, want > 0)
            assert_close(weights(q, k, pattern=Causal()), want)


def silenced(name, impl="auto"):
    """A layer of equal weights: q = 0, k = 0 where features weigh, and nothing is forgotten."""
    layer = Attention(SPECS[name], impl=impl, dtype=torch.float64)
    maps = [layer.q_proj] if SPECS[name].lane == "pairs" else [layer.q_proj, layer.k_proj]
    with torch.no_grad():
        for parameter in (p for one in maps for p in one.parameters()):
            parameter.zero_()
        if hasattr(layer, "f_proj"):
            layer.f_proj.bias.fill_(1e4)  # forget gates of 1
    return layer


def dependence(layer):
    """Which outputs depend on which inputs: bool [T, T]."""
    x = torch.randn(1, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    slopes = [
        torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)[0][0]
        for t in range(LENGTH)
    ]
    return torch.stack(slopes).abs().amax(-1) > 0


@pytest.mark.parametrize(
    "name",
    # what sums keys leaves no weight of a single key to read
    [
        name
        for name, spec in SPECS.items()
        if spec.mixing.keeps_keys
        and "past" not in spec.beyond_pairs
        and spec.lane != "recurrence"  # its weights are no shares
    ],
)
def test_read_out_through_layers(name):
    """Equal weights say what is allowed; what an output depends on is read from gradients.

    The features of 0 are the same numbers for every key: elu(0) + 1 = exp(0) = cos(0) = 1.
    """
    spec = SPECS[name]
    allowed = spec.pattern.mask(LENGTH, LENGTH)
    if spec.pattern.causal:
        assert not (allowed & (expected(LENGTH, LENGTH) == 0)).any()
    want = allowed / allowed.sum(-1, keepdim=True).double()
    x = torch.eye(LENGTH, D_MODEL, dtype=torch.float64)[None]
    for impl in ("auto", *ops_of(spec)):
        with named(impl):
            layer = silenced(name, impl)
            assert_close(layer.weights(x), want.expand(1, spec.query_heads, LENGTH, LENGTH))
            assert torch.equal(dependence(layer), allowed)


@pytest.mark.parametrize("impl", ops_of(SPECS["linformer"]))
def test_sums_of_keys_are_weighed_alike(impl):
    layer = silenced("linformer", impl)
    rank = SPECS["linformer"].mixing.rank
    shown = layer.weights(torch.eye(LENGTH, D_MODEL, dtype=torch.float64)[None])
    assert_close(shown, torch.full((1, 3, LENGTH, rank), 1 / rank, dtype=torch.float64))
    assert dependence(layer).all()
