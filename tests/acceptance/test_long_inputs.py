"""Inputs longer than any chunk, tile or buffer, in float32, and features that meet there."""

from __future__ import annotations

import copy

import pytest
import torch

from suffice import Attention, AttentionSpec, attend, preset
from suffice.memory import Dynamic, Rolling
from suffice.mixing import BandedAlignment, ToeplitzAlignment
from suffice.patterns import Causal, Full, Global, Strided, Window
from suffice.testing import assert_close, drawn, normal

from .mechanisms import PRESET_KINDS, accepting, spec_of

LENGTH = 300  # more than a chunk of sums (64), a piece of a mixing (256), a block of queries (32)
LONG = {
    label: spec_of(name, causal=causal, length=LENGTH)
    for label, (name, causal) in PRESET_KINDS.items()
}
SUMS = ("linear", "performer", "rfa")


def results(layer, x, **call):
    """Outputs, then the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    out = layer(x, **call)
    return [out, *torch.autograd.grad(out.square().mean(), [x, *layer.parameters()])]


def in_both_types(spec, x, **call):
    """Results in float32, and of the same numbers in float64."""
    layer = drawn(Attention(spec), seed=4).float()
    exact = copy.deepcopy(layer).double()
    return results(layer, x.float(), **call), results(exact, x.float().double(), **call)


def pieces(x, cuts):
    return [x[:, a:b] for a, b in zip([0, *cuts], [*cuts, x.shape[1]], strict=True)]


def streamed(layer, x, cuts, memory, valid=None):
    state = layer.state(memory)
    parts = pieces(x, cuts)
    known = [None] * len(parts) if valid is None else pieces(valid, cuts)
    with torch.no_grad():
        outs = [layer(p, valid=v, state=state) for p, v in zip(parts, known, strict=True)]
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("name", LONG)
def test_float32_is_float64_rounded(name):
    x = normal(2, LENGTH, 12, seed=1)
    for got, want in zip(*in_both_types(LONG[name], x), strict=True):
        assert_close(got, want, n=LENGTH * 12)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("causal", [False, True])
def test_documents_longer_than_a_chunk_in_sums_of_features(name, causal):
    spec = preset(name, 12, 3, causal=causal)
    x, cuts = normal(1, LENGTH, 12, seed=1), (0, 130, 131, LENGTH)
    layer = drawn(Attention(spec), seed=4).float()
    lengths = torch.tensor([b - a for a, b in zip(cuts, cuts[1:], strict=False)])
    segments = torch.arange(3).repeat_interleave(lengths)[None]
    got = layer(x.float(), segments=segments)
    for a, b in zip(cuts, cuts[1:], strict=False):
        assert_close(got[:, a:b], layer(x[:, a:b].float()), n=LENGTH)


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


@pytest.mark.parametrize("impl", accepting(6, 6, pattern=Causal()))
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_nan_in_one_group_reaches_its_own_heads_alone(impl, which):
    q, k, v = (normal(2, h, 6, 8, seed=h + 1) for h in (4, 2, 2))
    clean = attend(q, k, v, pattern=Causal(), impl=impl)
    (k if which == "key" else v)[:, 1, 3] = torch.nan
    out = attend(q, k, v, pattern=Causal(), impl=impl)
    assert_close(out[:, :2], clean[:, :2])
    assert_close(out[:, 2:, :3], clean[:, 2:, :3])
    assert out[:, 2:, 3:].isnan().all()


@pytest.mark.parametrize(
    "pattern",
    [
        (Window(20) | Global(3)) & Causal(),
        (Window(20) | Strided(40)) & Causal(),
        Window(20) | Global(3),
        Window(20) & Causal(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_rows_of_padding_alone_beside_sparse_patterns(pattern, kv_heads):
    spec = AttentionSpec(d_model=12, num_heads=3, num_kv_heads=kv_heads, pattern=pattern)
    x = normal(3, LENGTH, 12, seed=1)
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[1], valid[2, :140] = False, False
    got, want = in_both_types(spec, x, valid=valid)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, n=LENGTH * 12)
    layer = drawn(Attention(spec), seed=4).float()
    assert torch.equal(got[0][1], layer.o_proj.bias.expand(LENGTH, 12))
    assert not got[1][~valid].any()
    assert_close(got[0][2:, 140:], layer(x[2:, 140:].float()), n=LENGTH)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("cuts", [(), (1, 2, 130), (64, 65, 299)], ids=str)
def test_padding_beside_an_infini_memory(delta, cuts):
    spec = preset("infini", 12, 3, causal=True, segment=64, delta=delta)
    layer = drawn(Attention(spec), seed=4)
    x = normal(3, LENGTH, 12, seed=1).float()
    valid = torch.ones(3, LENGTH, dtype=torch.bool)
    valid[1, :70], valid[2, 100:170] = False, False
    out = streamed(layer, x, cuts, Dynamic(), valid) if cuts else layer(x, valid=valid)
    for row, real, got in zip(x, valid, out, strict=True):
        assert_close(got[real], layer(row[real][None])[0], n=LENGTH * 12)


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


@pytest.mark.parametrize("mixing", [ToeplitzAlignment(40), BandedAlignment(LENGTH, 7)], ids=repr)
@pytest.mark.parametrize("cuts", [(1,), (20, 21), (290,)], ids=str)
def test_mixings_streamed_in_pieces_longer_than_those_mixed_at_once(mixing, cuts):
    spec = AttentionSpec(d_model=12, num_heads=3, pattern=Causal(), mixing=mixing)
    layer = drawn(Attention(spec), seed=4)
    x = normal(2, LENGTH, 12, seed=1).float()
    assert_close(streamed(layer, x, cuts, Dynamic()), layer(x), n=LENGTH * 12)
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, :30], valid[1, 240:295] = False, False
    got = streamed(layer, x, cuts, Dynamic(), valid)
    assert_close(got[valid], layer(x, valid=valid)[valid], n=LENGTH * 12)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(90) & Causal()], ids=repr)
@pytest.mark.parametrize("queries", [1, 31, 33, LENGTH])
def test_every_op_in_float32_at_ragged_lengths(pattern, queries):
    q, k, v = (normal(2, h, n, 8, seed=n).float() for h, n in ((4, queries), (2, 301), (2, 299)))
    k, v = k[:, :, :299], v
    want = attend(q.double(), k.double(), v.double(), pattern=pattern, impl="reference")
    for impl in ("auto", *accepting(queries, 299, pattern=pattern)):
        if impl != "reference":
            assert_close(attend(q, k, v, pattern=pattern, impl=impl), want, n=LENGTH)
