"""T12: half types overflow nowhere, warn nowhere, and leave angles and sums in fp32."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec, attend, weights
from suffice.combine import Concat
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.testing import assert_close, drawn, normal

from .mechanisms import D_MODEL, LENGTH, NAMES, RECURRENT, SPECS, accepting, layer_of, named, ops_of
from .oracle import oracle

HALVES = (torch.float16, torch.bfloat16)
IMPLS = ("auto", *accepting(33, 33, heads=(2, 2)))
SHARED = ("auto", *accepting(7, 33))


@pytest.mark.parametrize("impl", IMPLS)
def test_products_beyond_the_range_of_fp16(impl):
    q = torch.full((1, 1, 2, 128), 40.0)
    q[:, :, 1] = 20.0
    k, v = 40 + 0.05 * normal(1, 1, 9, 128, seed=1), normal(1, 1, 9, 128, seed=2)
    q, k, v = (x.to(torch.float16) for x in (q, k, v))
    got = attend(q, k, v, impl=impl)
    assert torch.isfinite(got).all()
    assert (got.double() - oracle(q, k, v, torch.ones(2, 9).bool())).abs().max() <= 2e-2


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=repr)
def test_large_queries(dtype, impl, pattern):
    q, k, v = (normal(1, 2, 33, 64, seed=s) for s in (1, 2, 3))
    q, k, v = (200 * q).to(dtype), k.to(dtype), v.to(dtype)
    got = attend(q, k, v, impl=impl, pattern=pattern)
    want = oracle(q, k, v, pattern.mask(33, 33))
    assert (got.double() - want).abs().max() <= 2e-2


@pytest.mark.parametrize("impl", SHARED)
def test_large_logits_in_fp32(impl):
    q, k, v = normal(1, 2, 5, 16, seed=1), normal(1, 1, 9, 16, seed=2), normal(1, 1, 9, 16, seed=3)
    q = (q * 1e4 / (q @ k.mT).abs().max()).float()
    got = attend(q, k.float(), v.float(), scale=1.0, impl=impl)
    assert torch.isfinite(got).all()
    exact = oracle(q, k.float(), v.float(), torch.ones(5, 9).bool(), 1.0)
    assert (got.double() - exact).abs().max() <= 1e-2  # a logit of 1e4 has 1e-3 of rounding


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("impl", accepting(2, 4096, heads=(1, 1)))
def test_a_softmax_over_many_keys_is_summed_in_fp32(dtype, impl):
    """4096 equal weights of v = 1: a sum in bfloat16 stops growing at 256, in fp16 at 2048."""
    q = torch.zeros(1, 1, 2, 8, dtype=dtype)
    k, v = torch.ones(1, 1, 4096, 8, dtype=dtype), torch.ones(1, 1, 4096, 8, dtype=dtype)
    assert torch.equal(attend(q, k, v, impl=impl), torch.ones(1, 1, 2, 8, dtype=dtype))
    shares = weights(q, k)
    assert torch.equal(shares, torch.full_like(shares, 1 / 4096))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("impl", accepting(1, 2, heads=(1, 1), pattern=Causal()))
def test_logits_are_not_rounded_to_half(dtype, impl):
    """Logits near 300 that differ by 0.5: bfloat16 steps by 2 there, fp16 by 0.25."""
    q = torch.full((1, 1, 1, 64), 4.0, dtype=dtype)
    k = torch.full((1, 1, 2, 64), 9.0, dtype=dtype)
    k[0, 0, 1, 0] = 10.0
    v = torch.tensor([[[[0.0] * 64, [1.0] * 64]]], dtype=dtype)
    want = oracle(q, k, v, torch.ones(1, 2).bool())
    assert abs(float(want[0, 0, 0, 0]) - 0.6225) < 1e-3
    got = attend(q, k, v, impl=impl, pattern=Causal()).double()
    assert (got - want).abs().max() <= 4e-3


def rebuilt(layer, dtype):
    """The same layer by every way a module gets its dtype."""
    loaded = Attention(layer.spec).to(dtype)
    loaded.load_state_dict({name: p.to(dtype) for name, p in layer.state_dict().items()})
    assigned = Attention(layer.spec, device="meta")
    state = {name: p.to(dtype) for name, p in layer.state_dict().items()}
    assigned.load_state_dict(state, assign=True)
    cast = copy.deepcopy(layer)
    for parameter in cast.parameters():
        parameter.data = parameter.data.to(dtype)
    return {
        "to": copy.deepcopy(layer).to(dtype),
        "half": getattr(copy.deepcopy(layer), "half" if dtype is torch.float16 else "bfloat16")(),
        "deepcopy": copy.deepcopy(copy.deepcopy(layer).to(dtype)),
        "load": loaded,
        "assign": assigned,
        "cast": cast,
        "born": Attention(layer.spec, dtype=dtype).to(dtype),
    }


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_far_positions_survive_every_cast_of_a_layer(dtype):
    """Attention to a key 3 positions back must not depend on where in the text both stand."""
    spec = AttentionSpec(d_model=64, num_heads=1, position=Rope(), bias=False)
    layer = drawn(Attention(spec), seed=1)
    layers = rebuilt(layer, dtype)
    layers["born"].load_state_dict(layers["to"].state_dict())
    x = normal(1, 700, 64, seed=2, dtype=torch.float32).to(dtype)
    exact = copy.deepcopy(layers["to"]).double()
    want = exact.weights(x.double())[0, 0, 657]
    first = layers["to"].weights(x)[0, 0, 657]
    assert (first.double() - want).abs().max() <= 0.1 * want.max()
    for same in layers.values():
        assert all(p.dtype is dtype for p in same.parameters())
        assert_close(same.weights(x)[0, 0, 657], first, "exact")
    assert not list(layer.buffers())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_layers_of_half_type(name, dtype):
    """Near the float64 layer of the same rounded parameters and input."""
    layer = layer_of(name, dtype=dtype)
    x = normal(2, LENGTH, D_MODEL, seed=1, dtype=dtype)
    out = layer(x)
    assert out.dtype is dtype
    want = copy.deepcopy(layer).double()(x.double())
    error = (out.double() - want).square().mean() / want.square().mean()
    assert error.sqrt() <= 2 * torch.finfo(dtype).eps
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, :4] = False
    assert torch.isfinite(layer(x, valid=valid)).all()


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    """Softmax and products stay fp32 islands under autocast; the maps run in bfloat16."""
    x = normal(2, LENGTH, D_MODEL, seed=1, dtype=torch.float32)
    for impl in ("auto", *ops_of(SPECS[name])):
        layer = layer_of(name, dtype=torch.float32, impl=impl)
        if name.endswith(RECURRENT):  # a norm of heads magnifies rounding where a sum is near 0
            layer.spec = replace(layer.spec, combine=Concat())
        want = copy.deepcopy(layer).double()(x.double())
        with named(impl), torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x)
            assert out.dtype is torch.bfloat16
            error = (out.double() - want).square().mean() / want.square().mean()
            assert error.sqrt() <= 3 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("impl", IMPLS)
def test_large_logits_under_autocast(impl):
    """Part 1, 8: logits are fp32 islands; a logit near 100 rounded to bfloat16 is off by 0.25."""
    q, k, v = (normal(1, 2, 33, 64, seed=s).bfloat16() for s in (1, 2, 3))
    q = 20 * q
    want = oracle(q, k, v, torch.ones(33, 33).bool())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attend(q, k, v, impl=impl)
    assert (got.double() - want).abs().max() <= 2e-2
