"""Inputs longer than any chunk, tile or buffer, in float32."""

from __future__ import annotations

import copy

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.memory import Dynamic, Rolling
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, drawn, normal

from .mechanisms import PRESET_KINDS, spec_of

LENGTH = 300  # more than a chunk of sums (64), a piece of a mixing (256), a block of queries (32)
LONG = {
    label: spec_of(name, causal=causal, length=LENGTH)
    for label, (name, causal) in PRESET_KINDS.items()
}


def results(layer, x):
    """Outputs, then the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    out = layer(x)
    return [out, *torch.autograd.grad(out.square().mean(), [x, *layer.parameters()])]


def in_both_types(spec, x):
    """Results in float32, and of the same numbers in float64."""
    layer = drawn(Attention(spec), seed=4).float()
    exact = copy.deepcopy(layer).double()
    return results(layer, x.float()), results(exact, x.float().double())


def pieces(x, cuts):
    return [x[:, a:b] for a, b in zip([0, *cuts], [*cuts, x.shape[1]], strict=True)]


def streamed(layer, x, cuts, memory):
    state = layer.state(memory)
    with torch.no_grad():
        return torch.cat([layer(piece, state=state) for piece in pieces(x, cuts)], dim=1)


@pytest.mark.parametrize("name", LONG)
def test_float32_is_float64_rounded(name):
    x = normal(2, LENGTH, 12, seed=1)
    for got, want in zip(*in_both_types(LONG[name], x), strict=True):
        assert_close(got, want, n=LENGTH * 12)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_keys_in_sums_of_features(causal):
    """Of keys and values alone: the queries need no gradient."""
    spec = preset("linear", 12, 3, causal=causal)
    layer = drawn(Attention(spec), seed=4).double()
    x = normal(1, LENGTH, 12, seed=1)
    maps = [layer.k_proj.weight, layer.v_proj.weight]
    every = [*maps, layer.q_proj.weight]
    together = torch.autograd.grad(layer(x).square().sum(), every)
    layer.q_proj.requires_grad_(requires_grad=False)
    for got, want in zip(
        torch.autograd.grad(layer(x).square().sum(), maps), together, strict=False
    ):
        assert_close(got, want)
    step = 1e-6 * normal(12, 12, seed=9)
    with torch.no_grad():
        before = layer(x).square().sum()
        layer.k_proj.weight += step
        change = layer(x).square().sum() - before
    assert (change / (together[0] * step).sum() - 1.0).abs() < 1e-3


@pytest.mark.parametrize("cuts", [(600, 601, 1300), tuple(range(1, 1400, 200))], ids=len)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_rolling_window_of_more_than_512_keys(cuts, kv_heads):
    pattern = Window(600) & Causal()
    spec = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=kv_heads, pattern=pattern)
    layer = drawn(Attention(spec), seed=4)
    x = normal(1, 1400, 16, seed=1).float()
    with torch.no_grad():
        want = copy.deepcopy(layer).double()(x.double())
    for memory in (Rolling(600), Rolling(700, sinks=4, spare=3), Dynamic()):
        assert_close(streamed(layer, x, cuts, memory), want, n=LENGTH)


def test_single_tokens_behind_a_window_of_more_than_512_keys():
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Window(600) & Causal())
    layer = drawn(Attention(spec), seed=4)
    x = normal(1, 900, 16, seed=1).float()
    with torch.no_grad():
        want = copy.deepcopy(layer).double()(x.double())
    for memory in (Rolling(600), Dynamic()):
        got = streamed(layer, x, tuple(range(590, 900)), memory)
        assert_close(got, want, n=LENGTH)
