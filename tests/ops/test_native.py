"""The native kernels, with every set of instructions, against the float64 specification."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import product

import pytest
import torch

from suffice import Attention, AttentionSpec, attend
from suffice.errors import UnsupportedError
from suffice.kernels import Softmax
from suffice.ops import OPS, AttentionCall, choose, explain, register_flops
from suffice.ops.dispatch import (
    AMX_WIDTH,
    KEPT_KEYS,
    KEPT_WEIGHTS,
    LANES,
    LONG_WIDE,
    MEASURED,
    SPARSE_KEYS,
    SPARSE_PAIRS,
    TRAINED_PAIRS,
    TRAINED_WIDTH,
    WIDE_PAIRS,
    WIDE_TRAINING,
)
from suffice.ops.native import attention as kernels
from suffice.ops.native import library
from suffice.ops.native.attention import band_of, sparsity_of
from suffice.patterns import Block, Causal, Full, Global, PerHead, Random, Strided, Window
from suffice.positions import Alibi
from suffice.testing import assert_close, drawn
from tests.ops.native.codings import ISAS, isa, needs_kernels

pytestmark = needs_kernels
__all__ = ["isa"]
CHOICES = importlib.import_module("suffice.ops.dispatch")  # the name is also a function's
LENGTHS = (1, 3, 15, 16, 17, 65, 130, 513)
WIDTHS = (1, 8, 40, 64, 100, 128)
BANDS = [
    Full(), Causal(), Window(1), Window(7) & Causal(), Window(64), Window(256) & Causal(),
    Causal() & Full() & Window(7),
]  # fmt: skip
LISTED = [
    Window(20) | Global(3),
    Block(16, Window(2) | Global(1)) & Causal(),
    Window(3) | Random(2, seed=1) & Causal(),
    (Window(8) | Strided(8)) & Causal(),
    PerHead((Full(), Causal(), Window(5) | Global(1), Causal())),
]
PLAIN = AttentionCall(
    queries=200, keys=200, num_heads=4, num_kv_heads=4, head_dim=8, value_dim=8, scale=1.0
)


def heads(batch, number, length, width, *, layout="rows"):
    """Heads as a layer gives them, as such, cut out of something wider, or 4 bytes off."""
    if layout == "heads":
        return torch.randn(batch, number, length, width)
    if layout == "wide":
        return torch.randn(batch, length, number, 3 * width)[..., width : 2 * width].transpose(1, 2)
    if layout == "off":
        flat = torch.randn(batch * number * length * width + 1)[1:]
        return flat.view(batch, length, number, width).transpose(1, 2)
    return torch.randn(batch, length, number, width).transpose(1, 2)


def assert_as_specified(q, k, v, pattern, *, learning=True, n=None, **options):
    """Hold outputs and gradients against the specification."""
    ours = [x.detach().requires_grad_(learning) for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_(learning) for x in (q, k, v)]
    got = attend(*ours, pattern=pattern, impl="native", **options)
    want = attend(*exact, pattern=pattern, impl="reference", **options)
    longest = n or max(k.shape[2], q.shape[3])
    assert_close(got.detach(), want.detach(), n=longest)
    if learning:
        slope = torch.randn(want.shape).to(got.dtype)
        gradients = torch.autograd.grad(got, ours, slope)
        for a, b in zip(gradients, torch.autograd.grad(want, exact, slope.double()), strict=True):
            assert_close(a, b, n=8 * max(longest, q.shape[2], v.shape[3]))
    return got


@pytest.mark.parametrize("pattern", BANDS, ids=str)
def test_bands_of_every_length(isa, pattern):
    for i, (queries, keys) in enumerate(product(LENGTHS, LENGTHS)):
        if isa != ISAS[0] and i % 7:
            continue
        width, wide = WIDTHS[i % len(WIDTHS)], WIDTHS[i // 3 % len(WIDTHS)]
        groups = (4, 2, 1)[i % 3]
        q, k, v = heads(1, 4, queries, width), heads(1, groups, keys, width), None
        v = heads(1, groups, keys, wide)
        assert_as_specified(q, k, v, pattern, learning=queries * keys < 70_000 and i % 2 == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_beside_a_single_key_scores_have_no_gradient(isa, dtype):
    """Its weight is 1 whatever the score: two sums of the same products must be one number."""
    for queries, keys, width, pattern in (
        (1, 1, 8, Full()), (40, 1, 129, Full()), (33, 33, 300, Window(1)),
        (20, 20, 64, Window(1) & Causal()), (70, 70, 5, Block(1, Window(1))),
    ):  # fmt: skip
        q, k, v = (heads(2, 2, n, width).to(dtype) for n in (queries, keys, keys))
        q, k = q.requires_grad_(), k.requires_grad_()
        out = attend(q, k, v, pattern=pattern, impl="native")
        slope = 1e3 * torch.randn(out.shape).to(dtype)
        for gradient in torch.autograd.grad(out, (q, k), slope):
            assert not gradient.any(), (queries, keys, width)


@pytest.mark.parametrize("pattern", LISTED, ids=lambda p: type(p).__name__)
def test_lists_of_keys(isa, pattern):
    for queries, keys in ((1, 5), (17, 17), (65, 65), (33, 130), (64, 40), (200, 200)):
        q, k, v = heads(2, 4, queries, 8), heads(2, 2, keys, 8), heads(2, 2, keys, 24)
        assert_as_specified(q, k, v, pattern)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pattern", [*BANDS[:2], BANDS[3], LISTED[0]], ids=str)
def test_half_types(isa, pattern, dtype):
    sizes = ((1, 5, 8), (17, 17, 40), (33, 130, 100), (64, 40, 16), (513, 700, 24))
    for i, (queries, keys, width) in enumerate(sizes):
        q = heads(2, 4, queries, width).to(dtype)
        groups = (4, 2, 1)[i % 3]
        k, v = heads(2, groups, keys, width), heads(2, groups, keys, 2 * width + i)
        out = assert_as_specified(q, k.to(dtype), v.to(dtype), pattern)
        assert out.dtype is dtype
    layout = ("heads", "wide")[pattern is BANDS[0]]
    q, k, v = (heads(1, 2, 150, 40, layout=layout).to(dtype) for _ in range(3))
    assert_as_specified(q, k, v, pattern)


def padding(batch, keys):
    """Keys padded in front, behind, in places, nowhere and everywhere."""
    at = torch.arange(keys)
    rows = (at >= keys // 3, at < keys // 2, at % 3 != 1, at >= 0, at < 0)
    return torch.stack([rows[i % len(rows)] for i in range(batch)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pattern", [*BANDS[:2], BANDS[3], LISTED[0]], ids=str)
def test_padded_keys(isa, pattern, dtype):
    for queries, keys in ((1, 9), (20, 20), (33, 130), (300, 300)):
        q, k, v = (heads(5, n, t, 24).to(dtype) for n, t in ((4, queries), (2, keys), (2, keys)))
        valid = padding(5, keys)
        out = assert_as_specified(q, k, v, pattern, valid=valid)
        assert not out[4].any()
        wrong = torch.where(valid[:, None, :, None], v, torch.nan)
        again = attend(q, k, wrong, pattern=pattern, impl="native", valid=valid)
        assert torch.equal(again, out)


@pytest.mark.parametrize("layout", ["rows", "heads", "wide", "off"])
def test_any_strides_and_alignment(isa, layout):
    q, k, v = (heads(2, n, 150, 40, layout=layout) for n in (4, 2, 2))
    assert_as_specified(q, k, v, Causal())
    sparse = torch.randn(2, 4, 20, 80)[..., ::2]
    assert_as_specified(sparse, sparse[:, :2], sparse[:, 2:], Full())
    shared = torch.randn(2, 1, 20, 40).expand(2, 4, 20, 40)
    assert_as_specified(shared, shared, shared, Causal())


def test_scales(isa):
    q, k, v = (heads(1, 2, 40, 16) for _ in range(3))
    for scale in (0.0, -1.0, 3.0):
        assert_as_specified(q, k, v, Causal(), scale=scale)
    large = assert_as_specified(60 * q, 60 * k, v, Full(), learning=False)
    assert large.isfinite().all()


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
def test_nothing(isa, batch, queries, keys):
    q, k, v = (torch.randn(batch, 2, n, 4).requires_grad_() for n in (queries, keys, keys))
    out = attend(q, k, v, pattern=Causal(), impl="native")
    assert out.shape == q.shape
    assert not out.any()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert not gradient.any()


def test_a_query_without_keys_gives_0(isa):
    q, k, v = heads(1, 2, 70, 8), heads(1, 2, 20, 8), heads(1, 2, 20, 8)
    q.requires_grad_()
    out = attend(q, k, v, pattern=Causal(), impl="native")
    assert not out[:, :, :50].any()
    assert out[:, :, 50:].all()
    (gradient,) = torch.autograd.grad(out.square().sum(), q)
    assert not gradient[:, :, :50].any()
    structure = kernels.structure_of(q, k, v, Causal(), 1.0, 0.0)
    _, logs, _ = kernels.forward(q.detach(), k, v, None, None, structure, logs=True)
    assert (logs[:, :, :50] == -torch.inf).all()
    assert logs[:, :, 50:].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("of", ["keys", "values"])
@pytest.mark.parametrize("pattern", [Causal(), Window(5) & Causal(), Window(3) | Global(2)])
def test_hidden_numbers_are_never_read(isa, pattern, of, value):
    q, k, v = (heads(1, 2, 90, 16) for _ in range(3))
    bad = (k if of == "keys" else v).clone()
    bad[:, 1, 60, 3] = value
    k, v = (bad, v) if of == "keys" else (k, bad)
    visible = pattern.mask(90, 90)[:, 60]
    q.requires_grad_()
    for impl in ("native", "fused"):
        out = attend(q, k, v, pattern=pattern, impl=impl)
        assert out[:, 1, visible].isnan().all()
        assert out[:, 1, ~visible].isfinite().all()
        assert out[:, 0].isfinite().all()
    (gradient,) = torch.autograd.grad(out[:, :, ~visible].sum(), q)
    assert gradient[:, :, ~visible].isfinite().all()


def test_a_visible_nan_without_any_restriction(isa):
    q, k, v = (heads(1, 2, 40, 16) for _ in range(3))
    v[0, 0, 7] = torch.nan
    out = attend(q, k, v, impl="native")
    assert out[:, 0].isnan().all()
    assert out[:, 1].isfinite().all()


@pytest.mark.parametrize("threads", [1, 5])
def test_the_same_for_the_same_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q, k, v = (heads(1, n, 300, 32).requires_grad_() for n in (4, 2, 2))
        runs = []
        for _ in range(4):
            out = attend(q, k, v, pattern=Causal(), impl="native")
            runs.append((out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))))
        for run in runs[1:]:
            assert all(map(torch.equal, run, runs[0]))
        assert_as_specified(q, k, v, Causal())
    finally:
        torch.set_num_threads(before)


def test_a_graph_holds_it():
    spec = AttentionSpec(d_model=32, num_heads=2, pattern=Window(9) & Causal())
    layer, x = Attention(spec, impl="native"), torch.randn(2, 80, 32)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    sources = [*layer.parameters()]
    want, got = (torch.autograd.grad(call(x).square().sum(), sources) for call in (layer, compiled))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
    q, k, v = (heads(1, 2, 40, 16).requires_grad_() for _ in range(3))
    valid, sinks = torch.arange(40)[None] < 30, torch.randn(2, requires_grad=True)
    for of_pattern in (
        (None, None, Window(3).text),
        (valid, None, Full().text),
        (None, sinks, Causal().text),
    ):
        torch.library.opcheck(torch.ops.suffice.native.default, (q, k, v, *of_pattern, 0.25, 2.0))


@pytest.mark.parametrize("cap", [0.3, 50.0])
@pytest.mark.parametrize("pattern", [Causal(), Window(5) & Causal(), Window(3) | Global(2)])
def test_capped_products_and_their_gradients(isa, pattern, cap):
    spec = AttentionSpec(d_model=36, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer = drawn(Attention(replace(spec, kernel=Softmax(sink=True, cap=cap))), seed=1)
    x = torch.randn(2, 70, 36, requires_grad=True)
    results = []
    for impl in ("native", "reference"):
        layer.impl = impl
        out = layer(x)
        results.append((out, *torch.autograd.grad(out.square().mean(), (x, *layer.parameters()))))
    for got, want in zip(*results, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern", [Causal(), Window(5) & Causal(), Window(3) | Global(2)])
def test_sinks_take_their_share(isa, pattern, dtype):
    """Of every row, padded and shared ones too, also where a query sees no key."""
    spec = AttentionSpec(
        d_model=32, num_heads=4, num_kv_heads=2, pattern=pattern, kernel=Softmax(sink=True)
    )
    native, exact = (drawn(Attention(spec, impl=impl), seed=2) for impl in ("native", "reference"))
    x, valid = torch.randn(3, 140, 32), padding(3, 140)
    runs = []
    for layer in (native, exact):
        layer.to(dtype)
        out = layer(x.to(dtype), valid=valid if isinstance(pattern, Causal) else None)
        slopes = torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))
        runs.append((out, *slopes))
    for found, wanted in zip(*runs, strict=True):
        assert_close(found, wanted, n=140)


def test_autocast_gives_what_torch_would():
    q, k, v = (heads(1, 2, 100, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, impl="native")
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, attend(q, k, v, impl="native").bfloat16())


def test_it_is_counted():
    from torch.utils.flop_counter import FlopCounterMode

    register_flops()
    q, k, v = (heads(1, 2, 128, 16).requires_grad_() for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        out = attend(q, k, v, impl="native")
        assert counter.get_total_flops() == 4 * 2 * 128 * 128 * 16
        torch.autograd.grad(out.sum(), (q, k, v))
    assert counter.get_total_flops() == 14 * 2 * 128 * 128 * 16


@pytest.fixture
def instructions(request, monkeypatch):
    """Plan as with one set of instructions, whichever the kernels use."""
    monkeypatch.setattr(library, "instructions", lambda: request.param)
    return request.param


@pytest.mark.parametrize("instructions", MEASURED, indirect=True)
def test_where_it_is_chosen(instructions):
    inferring = replace(PLAIN, grad=False)
    assert choose(replace(inferring, queries=LANES, keys=1)).name == "native"
    assert choose(replace(inferring, queries=LANES - 1, keys=4096)).name == "fused"
    explanation = explain(replace(inferring, queries=9, keys=9))
    assert f"pays from {LANES} queries and 1 pairs on; here 9 and 81" in explanation
    assert choose(replace(PLAIN, queries=LANES, keys=1)).name == "native"
    alone = Window(8) | Random(1, seed=2) & Causal()
    for pattern in (Causal(), Window(30) & Causal(), Window(30) | Global(2), alone, Strided(8)):
        assert choose(replace(PLAIN, pattern=pattern)).name == "native"
    long = {"queries": SPARSE_KEYS, "keys": SPARSE_KEYS, "pattern": Strided(64) & Causal()}
    assert choose(replace(PLAIN, **long)).name == "blocked"
    assert "not native: pays unless keys lie far apart" in explain(replace(PLAIN, **long))
    assert choose(replace(PLAIN, **long, dtype=torch.float16)).name == "native"
    huge = replace(PLAIN, queries=20_000, keys=20_000, pattern=Window(15_000) | Global(9))
    assert choose(huge).name != "native"


@pytest.mark.parametrize("instructions", MEASURED, indirect=True)
def test_wide_heads_train_by_kept_weights_while_they_are_few(instructions):
    wide = replace(PLAIN, queries=128, keys=WIDE_PAIRS // 128, head_dim=WIDE_TRAINING)
    inferring = {"grad": False, "keys": LONG_WIDE}
    long = "fused" if instructions in ("avx2", "avxvnni") else "native"
    for change, chosen in (
        ({}, "matmul"), ({"keys": wide.keys - 1}, "fused"), ({"grad": False}, "native"),
        ({"keys": KEPT_KEYS}, "matmul"), ({"keys": KEPT_KEYS + 1}, "native"),
        ({"keys": KEPT_KEYS + 1, "head_dim": 256}, "matmul"),
        ({"keys": KEPT_WEIGHTS // 512 + 1, "head_dim": 256}, long), (inferring, long),
        (inferring | {"keys": LONG_WIDE - 1}, "native"),
        ({"plain": False, "padding": True}, "native"),
        ({"dtype": torch.float16}, "native"), ({"pattern": Causal()}, "native"),
    ):  # fmt: skip
        assert choose(replace(wide, **change)).name == chosen, change
    assert f"{WIDE_PAIRS} pairs" in explain(replace(wide, keys=wide.keys - 1))
    few = replace(wide, head_dim=TRAINED_WIDTH, queries=48, keys=TRAINED_PAIRS // 48 - 1)
    for change in ({"head_dim": TRAINED_WIDTH - 1}, {"keys": 48}, {"dtype": torch.bfloat16}):
        assert choose(replace(few, **change)).name == "native"
    for change in ({}, {"head_dim": 256, "queries": 64, "keys": 64}):
        assert choose(replace(few, **change)).name == "fused"


@pytest.mark.parametrize("instructions", ["avx512"], indirect=True)
def test_products_of_bfloat16_by_amx_are_left_to_torch(instructions, monkeypatch):
    monkeypatch.setattr(CHOICES, "capabilities", lambda: frozenset({"amx_bf16"}))
    half = replace(PLAIN, dtype=torch.bfloat16, grad=False, queries=1024, keys=1024)
    window, listed = Window(30) & Causal(), Window(200) | Global(2)
    few = {"queries": 64, "keys": 64}
    trained, small = {"grad": True}, {"queries": 300, "keys": 300}
    for change, chosen in (
        ({}, "fused"), (few, "native"), (trained, "fused"), (trained | small, "native"),
        ({"pattern": Causal()}, "fused"), ({"pattern": Causal()} | small, "native"),
        ({"pattern": Causal()} | trained, "native"), ({"pattern": window}, "native"),
        ({"pattern": listed}, "native"), ({"pattern": listed} | small, "fused"),
        ({"dtype": torch.float16}, "native"), ({"dtype": torch.float32}, "native"),
    ):  # fmt: skip
        assert choose(replace(half, **change)).name == chosen, change
    monkeypatch.setattr(library, "instructions", lambda: "amx")
    assert choose(half).name == "native"
    assert choose(replace(half, grad=True, head_dim=AMX_WIDTH)).name == "fused"
    assert choose(replace(half, grad=True, head_dim=AMX_WIDTH - 1)).name == "native"
    monkeypatch.setattr(library, "instructions", lambda: instructions)
    monkeypatch.setattr(CHOICES, "capabilities", frozenset)
    assert choose(half).name == "native"


@pytest.mark.skipif("amx" not in ISAS, reason="this processor, or the build, has no AMX")
@pytest.mark.parametrize("pattern", [*BANDS, *LISTED], ids=str)
@pytest.mark.parametrize(("queries", "keys", "width"), [(1, 77, 64), (33, 300, 80), (513, 513, 32)])
def test_the_error_of_amx_is_that_of_torch(queries, keys, width, pattern):
    before = library.instructions()
    q, k, v = (
        heads(2, number, length, width).bfloat16()
        for number, length in ((4, queries), (2, keys), (2, keys))
    )
    library.library().suffice_use_isa(b"amx")
    try:
        got = attend(q, k, v, pattern=pattern, impl="native")
    finally:
        library.library().suffice_use_isa(before.encode())
    exact = attend(*(x.double() for x in (q, k, v)), pattern=pattern, impl="reference")
    torchs = attend(q, k, v, pattern=pattern, impl="fused")
    errors = [(out.double() - exact).square().mean().sqrt() for out in (got, torchs)]
    assert errors[0] <= 1.05 * errors[1] + 1e-6


@pytest.mark.parametrize("instructions", ["portable", "neon"], indirect=True)
def test_an_instruction_set_without_measurement_leaves_dense_calls_to_torch(instructions):
    for grad, pattern in product((False, True), (Full(), Causal())):
        dense = replace(PLAIN, grad=grad, pattern=pattern, queries=900, keys=900)
        assert choose(dense).name == "fused"
        assert f"not native: not measured on {instructions}" in explain(dense)
    one = replace(PLAIN, grad=False, queries=1, keys=1 << 14)
    assert choose(one).name == "fused"
    assert f"not native_decode: not measured on {instructions}" in explain(one)
    window = replace(PLAIN, pattern=Window(64) & Causal(), queries=512, keys=SPARSE_PAIRS // 512)
    assert choose(window).name == "native"
    assert choose(replace(window, keys=SPARSE_PAIRS // 512 - 1)).name != "native"


REFUSED = {
    "read float32, float16, bfloat16, not torch.float64": {"dtype": torch.float64},
    "kernels are for the CPU": {"device": "cuda"},
    "dropping needs the weights": {"dropping": True},
    "not masks or positions": {"plain": False},
    "for bands": {"plain": False, "documents": True, "pattern": Strided(8)},
    "adds no bias, as Alibi does": {"position": Alibi()},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    with pytest.raises(UnsupportedError, match=message):
        choose(replace(PLAIN, **REFUSED[message]), "native")
    assert choose(replace(PLAIN, **REFUSED[message])).name != "native"


def test_without_kernels(no_kernels):
    with pytest.raises(UnsupportedError, match="no native kernels: they were not built"):
        choose(PLAIN, "native")
    assert choose(PLAIN).name == "fused"
    assert "not native: there are no native kernels" in explain(PLAIN)


def test_bands_and_lists():
    assert band_of(Causal() & Window(5) & Full()) == (4, 0)
    assert band_of(Window(5) | Strided(2)) is None
    assert band_of(Causal() & (Window(5) | Global(1))) is None
    assert sparsity_of(Full(), 3, 5, 2) == kernels.KeyRange(-8, 8)
    assert sparsity_of(Window(2) & Causal(), 3, 5, 2) == kernels.KeyRange(1, 2)


def test_a_layer_runs_it():
    spec = AttentionSpec(d_model=32, num_heads=4, pattern=Causal())
    layer = Attention(spec)
    x = torch.randn(2, 130, 32)
    exact = Attention(spec, impl="matmul")
    exact.load_state_dict(layer.state_dict())
    if library.instructions() in MEASURED:
        assert layer.explain(130).startswith("native: ")
    assert_close(layer(x), exact(x), n=130)
    with pytest.raises(UnsupportedError, match="torch.float64"):
        Attention(spec, impl="native", dtype=torch.float64)
    assert OPS["native"].masks_nonfinite


@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(9) & Causal()], ids=str)
def test_a_layer_skips_padding(pattern, monkeypatch):
    spec = AttentionSpec(d_model=32, num_heads=4, pattern=pattern)
    layer, exact = Attention(spec), Attention(spec, impl="matmul")
    exact.load_state_dict(layer.state_dict())
    x, valid = torch.randn(5, 130, 32), padding(5, 130)
    runs, forward = [], kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda *a, **b: runs.append(a) or forward(*a, **b))
    outputs = [module(x, valid=valid) for module in (layer, exact)]
    assert_close(*outputs, n=130)
    # distances in a window are those of the tokens, so the kernels get the rows one by one
    rows = 1 if isinstance(pattern, (Full, Causal)) else int(valid.any(dim=1).sum())
    assert len(runs) == (rows if library.instructions() in MEASURED else 0)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(module.parameters()))
        for out, module in zip(outputs, (layer, exact), strict=True)
    ]
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want, n=5 * 130 * 32)


@pytest.mark.skipif(
    not library.available() or library.instructions() not in MEASURED, reason="not measured here"
)
def test_a_compiled_window_is_in_the_kernels_and_a_dense_band_is_not():
    window = AttentionCall(
        queries=512, keys=512, num_heads=4, num_kv_heads=4, head_dim=32, value_dim=32, scale=1.0,
        pattern=Window(64) & Causal(), dtype=torch.float32, compiling=True,
    )  # fmt: skip
    assert choose(window).name == "native"
    assert choose(replace(window, pattern=Causal())).name == "fused"


@pytest.mark.parametrize("valid", [None, padding(2, 40)], ids=["whole", "padded"])
def test_a_gradient_may_have_other_strides_than_the_outputs(isa, valid):
    q, k, v = (heads(2, 3, 40, 16).requires_grad_() for _ in range(3))
    out = attend(q, k, v, pattern=Causal(), valid=valid, impl="native")
    exact = attend(q, k, v, pattern=Causal(), valid=valid, impl="reference")
    heads_first = torch.randn(out.shape)
    assert heads_first.stride() != out.stride()
    for slope in (heads_first, torch.empty_like(out).copy_(heads_first)):
        gradients = [
            torch.autograd.grad(x, (q, k, v), slope, retain_graph=True) for x in (out, exact)
        ]
        for got, want in zip(*gradients, strict=True):
            assert_close(got, want, n=40)
