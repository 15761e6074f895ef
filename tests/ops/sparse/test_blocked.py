"""The op blocked against the float64 specification, in all the cases that it computes."""

from __future__ import annotations

from dataclasses import dataclass
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


def results(x, impl, **options):
    out = attend(*x, impl=impl, **options)
    slope = normal(*out.shape, seed=9, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * slope).sum(), x)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_equals_the_reference(pattern):
    shapes = (1, 1, 1), (3, 70, 70), (2, 33, 150), (1, 260, 260), (5, 64, 64)
    for i, (batch, queries, keys) in enumerate(shapes, PATTERNS.index(pattern)):
        x = inputs(batch, 4, (4, 2, 1)[i % 3], queries, keys)
        for valid in (None, padded(batch, keys, "inside")):
            both = (results(x, impl, pattern=pattern, valid=valid) for impl in IMPLS)
            for a, b in zip(*both, strict=True):
                assert_close(a, b)


def test_gradients_by_differences():
    x = inputs(1, 2, 1, 20, 20, width=2)
    assert torch.autograd.gradcheck(partial(attend, pattern=PATTERNS[2], impl="blocked"), x)


def test_results_do_not_depend_on_the_size_of_pieces(monkeypatch):
    x = inputs(2, 4, 4, 300, 300)
    patterns = PATTERNS[1:5]
    wanted = [results(x, "blocked", pattern=pattern) for pattern in patterns]
    for pattern, want, size in zip(patterns, wanted, (1 << 10, 1, 1 << 10, 1), strict=True):
        monkeypatch.setattr(blocked, "PIECE", size)
        monkeypatch.setattr(blocked, "GATHERED", size)
        for a, b in zip(results(x, "blocked", pattern=pattern), want, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_summed_in_single(dtype):
    x = [t.detach().to(dtype).requires_grad_() for t in inputs(2, 4, 2, 200, 200, width=32)]
    exact = [t.detach().double().requires_grad_() for t in x]
    for pattern in PATTERNS[1:5]:
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
    x, first = normal(3, 90, 8, seed=1), PATTERNS.index(pattern) % 2
    masks = (
        {"valid": padded(3, 90, "left")},
        {"valid": padded(3, 90, "inside") & (torch.arange(3) > 0)[:, None]},
        {"segments": documents(3, 90) // 9},
        {"segments": documents(3, 90) // 9, "valid": padded(3, 90, "right")},
    )
    for options in masks[first::2]:
        both = []
        for layer in layers(pattern, num_kv_heads=2):
            leaf = x.clone().requires_grad_()
            out = layer(leaf, **options)
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
    "masks",
    [
        {"mask": torch.ones(1, 1, 9, 9, dtype=torch.bool)},
        {"segments": (torch.zeros(2, 9).long(),) * 2},
    ],
)
def test_refuses_masks_of_single_pairs(masks):
    x = inputs(2, 2, 2, 9, 9)
    with pytest.raises(UnsupportedError, match="pairs one by one"):
        attend(*x, pattern=Window(3), impl="blocked", **masks)


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
    """A pattern of a user."""

    def allowed(self, q_positions, k_positions):
        return (q_positions - k_positions).abs() <= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_graph_holds_it_for_every_length():
    torch._dynamo.reset()
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=Near())
    layer = Attention(spec, impl="blocked")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in (60, 71, 82):
        x = normal(2, length, 8, seed=1, dtype=torch.float32).requires_grad_()
        valid = padded(2, length, "left")
        a, b = compiled(x, valid=valid), layer(x, valid=valid)
        assert_close(a, b)
        slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (a, b)]
        assert_close(*slopes, n=length)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


def test_the_operator_passes_opcheck():
    q, k, v = inputs(2, 4, 2, 20, 20)
    numbers = torch.arange(20).expand(2, 20) // 7
    position = AttentionSpec(d_model=8, num_heads=2).position
    for pattern, *data in ((Near(), padded(2, 20, "left"), None), (PATTERNS[0], None, numbers)):
        args = (q, k, v, *data, pattern.text, position.text, 0.3)
        results = torch.library.opcheck(torch.ops.suffice.blocked.default, args)
        assert set(results.values()) == {"SUCCESS"}


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
