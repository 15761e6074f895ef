"""The op blocked: the float64 specification's numbers, over tiles, with everything it may meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch._dynamo.testing
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, AttentionSpec, attend
from suffice.errors import UnsupportedError
from suffice.ops import register_flops
from suffice.ops.sparse import blocked
from suffice.ops.sparse.plan import BACKWARD, cut
from suffice.patterns import Block, Causal, Full, Global, Pattern, PerHead, Random, Strided, Window
from suffice.testing import assert_close, documents, drawn, normal, padded

IMPLS = ("blocked", "reference")
PATTERNS = [
    Window(5) & Causal(),
    Window(40) | Global(3),
    (Window(16) | Strided(16)) & Causal(),
    Block(16, Window(2) | Random(2, length=40) | Global(1)),
    PerHead((Window(9), Full(), Window(9), Global(2))),
    Global(1) & Window(3),
]


def inputs(batch, heads, groups, queries, keys, *, width=6, dtype=torch.float64):
    shapes = (heads, queries), (groups, keys), (groups, keys)
    return [
        normal(batch, h, t, width, seed=i, dtype=dtype).requires_grad_()
        for i, (h, t) in enumerate(shapes)
    ]


def results(x, impl, **given):
    out = attend(*x, impl=impl, **given)
    slope = normal(*out.shape, seed=9, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * slope).sum(), x)]


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_equals_the_reference(pattern, groups):
    for batch, queries, keys in ((1, 1, 1), (3, 70, 70), (2, 33, 150), (1, 260, 260), (5, 64, 64)):
        x = inputs(batch, 4, groups, queries, keys)
        for valid in (None, padded(batch, keys, "inside")):
            given = {"pattern": pattern, "valid": valid}
            both = (results(x, impl, **given) for impl in IMPLS)
            for a, b in zip(*both, strict=True):
                assert_close(a, b)


@pytest.mark.parametrize("pattern", PATTERNS[:4], ids=repr)
def test_gradients_by_differences(pattern):
    x = inputs(1, 2, 1, 20, 20, width=3)
    call = partial(attend, pattern=pattern, impl="blocked")
    assert torch.autograd.gradcheck(call, x)


@pytest.mark.parametrize("pieces", [1, 1 << 10])
def test_pieces_change_nothing(monkeypatch, pieces):
    x = inputs(2, 4, 4, 300, 300)
    whole = [results(x, "blocked", pattern=pattern) for pattern in PATTERNS]
    monkeypatch.setattr(blocked, "PIECE", pieces)
    monkeypatch.setattr(blocked, "GATHERED", pieces)
    for pattern, want in zip(PATTERNS, whole, strict=True):
        for a, b in zip(results(x, "blocked", pattern=pattern), want, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_types_are_summed_in_single(dtype):
    x = [t.detach().to(dtype).requires_grad_() for t in inputs(2, 4, 2, 200, 200, width=32)]
    exact = [t.detach().double().requires_grad_() for t in x]
    for pattern in PATTERNS:
        got = results(x, "blocked", pattern=pattern)
        want = attend(*exact, pattern=pattern, impl="reference")
        assert got[0].dtype is dtype
        assert_close(got[0], want.detach(), n=200)
        assert all(bool(g.isfinite().all()) for g in got)


def layers(pattern, **sizes):
    spec = AttentionSpec(**{"d_model": 8, "num_heads": 4, "pattern": pattern, **sizes})
    return [drawn(Attention(spec, impl=i, dtype=torch.float64), seed=3) for i in IMPLS]


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_padded_and_packed_rows_of_a_layer(pattern):
    x = normal(3, 90, 8, seed=1)
    for given in (
        {"valid": padded(3, 90, "left")},
        {"valid": padded(3, 90, "inside") & (torch.arange(3) > 0)[:, None]},
        {"segments": documents(3, 90) // 9},
        {"segments": documents(3, 90) // 9, "valid": padded(3, 90, "right")},
    ):
        both = []
        for layer in layers(pattern, num_kv_heads=2):
            leaf = x.clone().requires_grad_()
            out = layer(leaf, **given)
            slopes = torch.autograd.grad(out.square().sum(), [leaf, *layer.parameters()])
            both.append([out.detach(), *slopes])
        for a, b in zip(*both, strict=True):
            assert_close(a, b)


def test_nothing_hidden_is_read():
    x = [t.detach() for t in inputs(2, 4, 2, 80, 80)]
    valid = padded(2, 80, "inside")
    want = attend(*x, pattern=PATTERNS[1], valid=valid, impl="blocked")
    for bad in (torch.nan, torch.inf):
        k, v = (t.masked_fill(~valid[:, None, :, None], bad) for t in x[1:])
        got = attend(x[0], k, v, pattern=PATTERNS[1], valid=valid, impl="blocked")
        assert_close(got, want, "exact")


def test_a_query_without_keys_gives_zero():
    pattern = Global(1) & Window(3)
    out, *slopes = results(inputs(1, 2, 2, 9, 9), "blocked", pattern=pattern)
    assert (out[:, :, 3:] == 0).all()
    assert (slopes[0][:, :, 3:] == 0).all()
    assert (out[:, :, :3] != 0).any(-1).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mask": torch.ones(1, 1, 9, 9, dtype=torch.bool)}, "name pairs one by one"),
        ({"segments": (torch.zeros(2, 9).long(),) * 2}, "name pairs one by one"),
    ],
)
def test_refuses_what_names_pairs(given, reason):
    x = inputs(2, 2, 2, 9, 9)
    with pytest.raises(UnsupportedError, match=reason):
        attend(*x, pattern=Window(3), impl="blocked", **given)


def test_refuses_dropped_weights_and_other_devices():
    layer = Attention(
        AttentionSpec(d_model=8, num_heads=2, pattern=Window(3), dropout=0.5), impl="blocked"
    )
    with pytest.raises(UnsupportedError, match="dropping weights"):
        layer(torch.zeros(1, 9, 8))
    with pytest.raises(UnsupportedError, match="flash kernel of the CPU"):
        layer.eval().explain(9, device="cuda")


@dataclass(frozen=True)
class Near(Pattern):
    """A user's own."""

    def allowed(self, q_positions, k_positions):
        return (q_positions - k_positions).abs() <= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_graph_holds_it_for_every_length():
    torch._dynamo.reset()
    layer = Attention(AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=Near()))
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in (600, 700, 801):
        x = normal(2, length, 8, seed=1, dtype=torch.float32).requires_grad_()
        valid = padded(2, length, "left")
        for given in ({}, {"valid": valid}):
            a, b = compiled(x, **given), layer(x, **given)
            assert_close(a, b)
            slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (a, b)]
            assert_close(*slopes, n=length)
    assert counter.frame_count <= 4
    torch._dynamo.reset()


def test_the_operator_keeps_torchs_rules():
    q, k, v = inputs(2, 4, 2, 20, 20)
    numbers = torch.arange(20).expand(2, 20) // 7
    for pattern in (Near(), PATTERNS[0]):
        for data in ((None, None), (padded(2, 20, "left"), None), (None, numbers)):
            text = replace(AttentionSpec(d_model=8, num_heads=2), pattern=pattern)
            args = (q, k, v, *data, pattern.text, text.position.text, 0.3)
            found = torch.library.opcheck(torch.ops.suffice.blocked.default, args)
            assert set(found.values()) == {"SUCCESS"}


def test_its_products_are_counted():
    q, k, v = inputs(2, 4, 2, 200, 200)
    pattern = Window(5) & Causal()
    register_flops()
    with FlopCounterMode(display=False) as counter:
        out = attend(q, k, v, pattern=pattern, impl="blocked")
    assert counter.get_total_flops() == 4 * 2 * 4 * 6 * cut(pattern, 200, 200).pairs
    register_flops()
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 10 * 2 * 4 * 6 * cut(pattern, 200, 200, BACKWARD).pairs
