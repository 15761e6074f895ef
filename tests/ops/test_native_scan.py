"""The native sums of features, with every set of instructions, against the specification."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.errors import UnsupportedError
from suffice.kernels import Elu, Favor, Rfa
from suffice.ops import OPS, MaskInputs, choose, explain, register_flops
from suffice.ops.native import library
from suffice.patterns import Causal, Full, Window
from suffice.testing import assert_close
from tests.ops.native.codings import isa, some_isa
from tests.ops.native.sums import assert_as_specified, heads, inputs, posed

__all__ = ["isa", "some_isa"]

pytestmark = pytest.mark.skipif(not library.available(), reason="no native kernels were built")
KERNELS = (Elu(), Favor(9), Favor(70, seed=1))
PATTERNS = (Causal(), Full())
LENGTHS = ((1, 1), (3, 3), (16, 17), (64, 64), (65, 65), (7, 100), (130, 130), (100, 7))
WIDTHS = ((1, 1), (8, 8), (40, 24), (64, 64), (20, 33))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_length_and_width(isa, kernel, pattern):
    for i, ((queries, keys), (width, wide)) in enumerate(product(LENGTHS, WIDTHS)):
        if i % 3 == len(isa) % 3 or i % 7 == 0:
            groups = (4, 2, 1)[i % 3]
            assert_as_specified(
                *inputs(queries, keys, groups=groups, width=width, wide=wide), kernel, pattern
            )


@pytest.mark.parametrize("kernel", [Elu(), Favor(512)], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_long_sequences_pass_several_stretches(some_isa, kernel, pattern):
    q, k, v = (x[:1, :2] for x in inputs(600, 700, width=16))
    assert_as_specified(q, k, v, kernel, pattern)
    assert_as_specified(q, k[:, :1], v[:, :1], kernel, pattern)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_padding(some_isa, kernel, pattern):
    for queries, keys in ((9, 9), (100, 100), (20, 150)):
        valid = torch.rand(2, keys, generator=torch.Generator().manual_seed(keys)) < 0.6
        valid[0, : keys // 2] = False
        assert_as_specified(*inputs(queries, keys), kernel, pattern, where=MaskInputs(valid=valid))
    valid = torch.zeros(2, 70, dtype=torch.bool)
    valid[1] = True
    out = assert_as_specified(*inputs(70, 70), kernel, pattern, where=MaskInputs(valid=valid))
    assert not out[0].any()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_documents(some_isa, kernel, pattern):
    for length, often in ((9, 0.3), (150, 0.02), (65, 0.5), (65, 1.0)):
        begins = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) < often
        places = torch.arange(length).expand(2, -1)
        runs = begins.cumsum(1)
        valid = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) < 0.9
        for hides in (None, valid):
            where = MaskInputs(
                valid=hides,
                q_segments=runs,
                k_segments=runs,
                q_positions=places,
                k_positions=places,
            )
            assert_as_specified(*inputs(length, length), kernel, pattern, where=where)


@pytest.mark.parametrize("kernel", [Elu(), Favor(9)], ids=str)
@pytest.mark.parametrize("place", [1, 20, 68, 70, 100])
def test_sums_that_overflow_end_with_their_document(some_isa, kernel, place):
    """The state behind a document is emptied: infinity times 0 would be NaN."""
    q, k, v = inputs(140, 140)
    runs = (torch.arange(140) >= 70).long().expand(2, -1)
    places = torch.arange(140).expand(2, -1)
    where = MaskInputs(q_segments=runs, k_segments=runs, q_positions=places, k_positions=places)
    problem, parts = posed(q, k, v, kernel, Causal())
    huge = v.clone()
    huge[:, :, place : place + 2] = 3e38
    got, want = (OPS["native_scan"].run(q, k, x, where, problem, parts) for x in (huge, v))
    at = torch.arange(140)
    sound = (at < place) | (runs[0] != runs[0, place])
    assert_close(got[:, :, sound], want[:, :, sound], "exact")
    assert not got[:, :, ~sound].isfinite().all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("groups", [4, 2])
def test_references_that_move(some_isa, pattern, groups):
    """Keys whose scales rise, fall and leap: many pieces in a strip."""
    q, k, v = inputs(140, 140, groups=groups, width=16)
    rising = torch.linspace(12.0, 0.1, 140)[:, None]
    for sizes in (rising, rising.flip(0), 12.0 * (torch.arange(140) % 3)[:, None]):
        assert_as_specified(q, sizes * k, v, Favor(40), pattern, n=1 << 14)
    huge = k.clone()
    huge[:, :, 70] = 1e30
    problem, parts = posed(q, k, v, Favor(40), Causal())
    got, want = (OPS["native_scan"].run(q, x, v, MaskInputs(), problem, parts) for x in (huge, k))
    assert_close(got[:, :, :70], want[:, :, :70], "exact")
    assert got.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*vanish:RuntimeWarning")
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_gradients_of_weights_that_vanish_equal_those_of_the_scan(some_isa, pattern):
    """Sums of weights below 2^-103 are divided by 2^-103, a constant without a gradient."""
    q, k, v = inputs(9, 9)
    q, k = q / 10 - 39.0, k / 10 - 39.0
    call, parts = posed(q, k, v, Elu(), pattern)
    results = []
    for name in ("native_scan", "scan"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = OPS[name].run(*leaves, MaskInputs(), call, parts)
        assert out.abs().max() < 0.1
        results.append((out, *torch.autograd.grad(out.sum() * 1e6, leaves)))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, n=1 << 10)


@pytest.mark.parametrize("layout", ["rows", "heads", "wide", "off", "spaced"])
def test_any_strides_and_alignment(isa, layout):
    assert_as_specified(*inputs(80, 80, width=24, wide=24, layout=layout), Favor(20), Causal())
    assert_as_specified(*inputs(80, 80, width=24, wide=24, layout=layout), Elu(), Full())
    shared = heads(2, 1, 20, 40).expand(2, 4, 20, 40)
    assert_as_specified(shared, shared, shared, Elu(), Causal())


@pytest.mark.parametrize("shape", [(0, 3, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 3, 0)])
def test_nothing(shape):
    batch, queries, keys, wide = shape
    q, k = heads(batch, 4, queries, 8).requires_grad_(), heads(batch, 2, keys, 8)
    v = heads(batch, 2, keys, wide)
    out, totals = torch.ops.suffice.native_scan(q, k, v, None, None, None, False, 1.0)
    assert out.shape == (batch, 4, queries, wide)
    assert not out.any()
    assert not totals.any()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


@pytest.mark.parametrize("count", [1, 3, 8])
def test_any_number_of_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        q, k, v = (x[:1, :1] for x in inputs(300, 300, width=64, wide=100))
        for kernel, pattern in zip((Elu(), Favor(64)), PATTERNS, strict=True):
            assert_as_specified(q, k, v, kernel, pattern)
        assert_as_specified(*inputs(300, 300, groups=4, width=64, wide=64), Favor(64), Causal())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_go_through_float32(some_isa, dtype):
    q, k, v = (x.to(dtype) for x in inputs(100, 100))
    problem, parts = posed(q, k, v, Favor(20), Causal())
    got = OPS["native_scan"].run(q, k, v, MaskInputs(), problem, parts)
    want = OPS["native_scan"].run(q.float(), k.float(), v.float(), MaskInputs(), problem, parts)
    assert got.dtype is dtype
    assert_close(got, want.to(dtype), "exact")
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(
            OPS["native_scan"].run(q.float(), k.float(), v.float(), MaskInputs(), problem, parts),
            want,
            "exact",
        )


def test_it_equals_the_scan(some_isa):
    q, k, v = inputs(200, 200, width=32)
    for kernel, pattern in product(KERNELS, PATTERNS):
        problem, parts = posed(q, k, v, kernel, pattern)
        a, b = (
            OPS[name].run(q, k, v, MaskInputs(), problem, parts) for name in ("native_scan", "scan")
        )
        assert_close(a, b, n=200)


def test_one_graph_holds_forward_and_backward():
    layer = Attention(AttentionSpec(d_model=32, num_heads=4, kernel=Favor(24), pattern=Causal()))
    x, valid = torch.randn(2, 80, 32), torch.rand(2, 80) < 0.8
    segments = (torch.arange(80) // 30).expand(2, 80)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    sources = [*layer.parameters()]
    for masks in ({"valid": valid}, {"segments": segments}):
        want, got = (
            torch.autograd.grad(call(x, **masks).square().sum(), sources)
            for call in (layer, compiled)
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


def test_the_operator_passes_opcheck():
    q, k, v = (x[:1].requires_grad_() for x in inputs(40, 40))
    omega = Favor(6).build(head_dim=8, scale=1.0, device=None).omega
    valid = torch.rand(1, 40) < 0.5
    documents = (torch.arange(40) // 7)[None]
    for data in ((None, valid, None, False), (omega, None, documents, True)):
        args = (q, k, v, *data, 0.5)
        results = torch.library.opcheck(torch.ops.suffice.native_scan.default, args)
        assert set(results.values()) == {"SUCCESS"}


def test_it_is_counted():
    from torch.utils.flop_counter import FlopCounterMode

    register_flops()
    q, k, v = (x.requires_grad_() for x in inputs(128, 128, groups=4))
    for kernel, features in ((Elu(), 8), (Favor(20), 20)):
        problem, parts = posed(q, k, v, kernel, Causal())
        projected = 0 if kernel == Elu() else 2 * 8 * 20 * 2 * 128
        pairs = 2 * 2 * 64 * 64
        want = 8 * (projected + (features + 16) * pairs + 2 * features * 16 * 128)
        with FlopCounterMode(display=False) as counter:
            out = OPS["native_scan"].run(q, k, v, MaskInputs(), problem, parts)
            assert counter.get_total_flops() == want
            torch.autograd.grad(out.sum(), (q, k, v))
        assert counter.get_total_flops() == 3 * want + 8 * features * pairs
    full, parts = posed(q, k, v, Elu(), Full())
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(
            OPS["native_scan"].run(q, k, v, MaskInputs(), full, parts).sum(), (q, k, v)
        )
    assert counter.get_total_flops() == 3 * 8 * 2 * 2 * 128 * 8 * 16


PLAIN = posed(*inputs(70, 70), Elu(), Causal())[0]
REFUSED = {
    "read float32, float16, bfloat16, not torch.float64": {"dtype": torch.float64},
    "kernels are for the CPU": {"device": "cuda"},
    "features of Elu and Favor, not of Rfa": {"kernel": Rfa(8)},
    "know Full and Causal, not Window": {"pattern": Window(3)},
    "name pairs one by one": {"pairwise": True},
    "no weights to drop": {"dropping": True},
    "no query or no key": {"keys": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    with pytest.raises(UnsupportedError, match=message):
        choose(replace(PLAIN, **REFUSED[message]), "native_scan")


def test_where_it_is_chosen(no_kernels, monkeypatch):
    assert choose(PLAIN).name == "scan"
    assert "not native_scan: there are no native kernels" in explain(PLAIN)
    monkeypatch.undo()
    assert choose(PLAIN).name == "native_scan"
    assert "not scan: slower for these sizes, as measured" in explain(PLAIN)
    assert choose(replace(PLAIN, kernel=Rfa(8))).name == "scan"


def test_a_layer_runs_it_and_streams_on():
    """Sums of a whole text equal those of a text read piece by piece."""
    spec = AttentionSpec(d_model=32, num_heads=4, kernel=Favor(20), pattern=Causal())
    layer, x = Attention(spec).eval(), torch.randn(2, 130, 32)
    assert layer.explain(130).startswith("native_scan: ")
    with torch.no_grad():
        want, state = layer(x), layer.state()
        parts = [layer(part, state=state) for part in x.split((70, 1, 59), dim=1)]
        assert_close(torch.cat(parts, dim=1), want, n=130)
