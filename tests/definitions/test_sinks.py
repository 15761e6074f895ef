"""Softmax with a sink and a cap, from the formulas of arXiv:2508.10925 and arXiv:2408.00118."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.errors import ConfigError
from suffice.kernels import Kernel, Softmax
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.patterns import Causal
from suffice.testing import drawn

KERNELS = [Softmax(sink=True), Softmax(cap=0.7), Softmax(sink=True, cap=0.7)]


def by_loops(q, k, v, sinks, cap, scale):
    """One query, one head and one key after the other; q, k, v [H, T, D], sinks [H] or None."""
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    for h in range(q.shape[0]):
        for t in range(q.shape[1]):
            products = [scale * float(q[h, t] @ k[h, s]) for s in range(t + 1)]
            if cap is not None:
                products = [cap * math.tanh(p / cap) for p in products]
            weights = [math.exp(p) for p in products]
            total = sum(weights) + (0.0 if sinks is None else math.exp(float(sinks[h])))
            for s, weight in enumerate(weights):
                out[h, t] += weight / total * v[h, s]
    return out


@pytest.mark.parametrize("impl", ["auto", "reference", "matmul"])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_it_is_the_formula(kernel, impl):
    spec = AttentionSpec(d_model=12, num_heads=3, pattern=Causal(), kernel=kernel, bias=False)
    layer = drawn(Attention(spec, impl=impl, dtype=torch.float64), seed=1)
    x = torch.randn(1, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        q, (k, v) = layer.queries(x)[0], layer.keys_and_values(x)
        heads = by_loops(q, k[0], v[0], layer.parts().sinks, kernel.cap, 0.5)
        expected = layer.o_proj(heads.transpose(0, 1).flatten(1)[None])
        torch.testing.assert_close(layer(x), expected)


def test_a_sink_takes_its_share_of_the_weights():
    spec = AttentionSpec(d_model=8, num_heads=2, kernel=Softmax(sink=True))
    layer = Attention(spec)
    with torch.no_grad():
        layer.q_proj.weight.zero_()
        layer.q_proj.bias.zero_()
        layer.sinks.copy_(torch.tensor([0.0, math.log(5.0)]))
        weights = layer.weights(torch.randn(1, 5, 8))
    torch.testing.assert_close(weights[0].sum(dim=-1)[:, 0], torch.tensor([5 / 6, 0.5]))


def test_gradients_of_sinks_are_those_of_the_specification():
    spec = AttentionSpec(d_model=32, num_heads=2, pattern=Causal(), kernel=Softmax(sink=True))
    x, grads = torch.randn(2, 40, 32), {}
    for impl in ("auto", "reference"):
        layer = drawn(Attention(spec, impl=impl), seed=3)
        (layer(x) * torch.linspace(-1, 1, 32)).sum().backward()
        grads[impl] = {name: p.grad for name, p in layer.named_parameters()}
    for name, grad in grads["auto"].items():
        torch.testing.assert_close(grad, grads["reference"][name], atol=2e-5, rtol=1e-4, msg=name)
    assert grads["auto"]["sinks"].abs().min() > 0


def test_values_without_them_are_stored_as_before():
    assert Softmax().to_json() == {"name": "Softmax"}
    for kernel in KERNELS:
        assert Kernel.from_json(kernel.to_json()) == kernel


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_a_cap_that_bounds_nothing_is_refused(cap):
    with pytest.raises(ConfigError, match="cap"):
        Softmax(cap=cap)


@pytest.mark.parametrize(
    "memory",
    [
        Dynamic(),
        Static(40),
        Rolling(8, 2),
        Quantised(recent=4, block=4),
        Quantised(bits=4, recent=4, block=4),
    ],
)
def test_a_stream_takes_the_sinks_along(memory):
    """Token by token, by the kernels that read the cache, as by the formula."""
    spec = AttentionSpec(
        d_model=64, num_heads=4, num_kv_heads=2, pattern=Causal(), kernel=Softmax(sink=True)
    )
    plain = replace(spec, kernel=Softmax())
    found, wanted, without = (
        drawn(Attention(each, impl=impl), seed=1).eval()
        for each, impl in ((spec, "auto"), (spec, "reference"), (plain, "auto"))
    )
    with torch.no_grad():
        found.sinks.fill_(2.0)
        wanted.sinks.fill_(2.0)
    x = torch.randn(3, 30, 64, generator=torch.Generator().manual_seed(0))
    runs = []
    for layer in (found, wanted, without):
        state = layer.state(memory)
        with torch.no_grad():
            pieces = [layer(x[:, at : at + 1], state=state) for at in range(30)]
        runs.append(torch.cat(pieces, dim=1))
    close = 2e-2 if memory.lossy else 1e-5  # queries of codes are rounded, too
    torch.testing.assert_close(runs[0], runs[1], atol=close, rtol=close)
    assert (runs[0] - runs[2]).abs().max() > 0.1
