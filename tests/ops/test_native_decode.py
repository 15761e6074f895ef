"""Few queries in the native kernels, with every set of instructions, against the specification."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, attend, preset
from suffice.errors import UnsupportedError
from suffice.kernels import Elu
from suffice.ops import AttentionCall, choose, explain
from suffice.ops.dispatch import AMX_ROWS, FEW_PAIRS, capabilities
from suffice.ops.flops import register_flops
from suffice.ops.fused import FOLDED, FUSED
from suffice.ops.native import library
from suffice.ops.native.decode import DECODE, MAX_QUERIES, slopes_of
from suffice.patterns import Causal, Full, Global, PerHead, Strided, Window
from suffice.positions import Alibi
from suffice.positions.base import Position
from suffice.spec import AttentionSpec
from suffice.testing import assert_close, normal
from tests.ops.native.codings import isa, needs_kernels

__all__ = ["isa"]
pytestmark = needs_kernels
CHOICES = importlib.import_module("suffice.ops.dispatch")  # the name is also a function's
PLAIN = AttentionCall(
    queries=1, keys=200, num_heads=4, num_kv_heads=4, head_dim=8, value_dim=8, scale=1.0,
    grad=False,
)  # fmt: skip
PATTERNS = [
    Causal(), Full(), Window(7) & Causal(), Window(7), Window(2) | Global(3),
    Window(600) & Causal(), Strided(3) & Causal(), PerHead((Full(), Causal(), Window(5), Causal())),
]  # fmt: skip
SIZES = [
    (1, 4, 1, 1, 16),
    (1, 4, 4, 130, 64),
    (2, 4, 2, 1100, 32),  # a window of 600 meets three splits of 512 keys
    (2, 4, 1, 65, 40),
    (3, 4, 2, 17, 128),
]
GIVEN = ("nothing", "valid", "left", "mask", "segments")


class Ahead(Position):
    """A bias of a test's own."""

    biases = True


@pytest.fixture(autouse=True, scope="module")
def tables():
    """Leave the library's table as it was."""
    yield
    Position.table.pop("Ahead", None)


def restricted(name, batch, queries, keys):
    if name == "valid":
        return {"valid": torch.rand(batch, keys) > 0.3}
    if name == "left":
        return {"valid": torch.arange(keys) >= torch.randint(keys, (batch, 1))}
    if name == "mask":
        return {"mask": torch.rand(batch, 4, queries, keys) > 0.5}
    if name == "segments":
        return {"segments": tuple(torch.randint(2, (batch, n)) for n in (queries, keys))}
    return {}


def as_specified(q, k, v, **given):
    with torch.no_grad():
        got = attend(q, k, v, impl="native_decode", **given)
        exact = (x.double() for x in (q, k, v))
        assert_close(got, attend(*exact, impl="reference", **given), n=k.shape[2])
    return got


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_patterns_and_restrictions(isa, pattern):
    for queries, (batch, heads, groups, keys, width), name in product((1, 3), SIZES, GIVEN):
        q = torch.randn(batch, heads, queries, width)
        k = torch.randn(batch, groups, keys, width)
        v = torch.randn(batch, keys, groups, width).transpose(1, 2)  # as a layer gives them
        as_specified(q, k, v, pattern=pattern, **restricted(name, batch, queries, keys))


def test_strides_alignment_and_scale(isa):
    flat = torch.randn(2 * 3 * 90 * 24 + 1)[1:].view(2, 90, 3, 24).transpose(1, 2)
    wide = torch.randn(2, 3, 90, 48)[..., ::2]
    shared = torch.randn(2, 1, 90, 24).expand(2, 3, 90, 24)
    q = torch.randn(2, 2, 3, 24).transpose(1, 2)
    for k, v in ((flat, wide), (wide, shared), (shared, shared)):
        as_specified(q, k, v, pattern=Causal(), scale=-0.7)
    assert as_specified(60 * q, 60 * flat, wide).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_stored(isa, dtype):
    q, k, v = (torch.randn(2, n, t, 64).to(dtype) for n, t in ((4, 1), (2, 99), (2, 99)))
    with torch.no_grad():
        got = attend(q, k, v, impl="native_decode")
        want = attend(*(x.double() for x in (q, k, v)), impl="reference")
        assert got.dtype is dtype
        assert_close(got.float(), want.to(dtype).float(), n=1 << 18)
        with torch.autocast("cpu", torch.bfloat16):
            assert (
                attend(q.float(), k.float(), v.float(), impl="native_decode").dtype
                is torch.bfloat16
            )


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [(128, torch.float32), *product([12, 16, 33], [torch.float32, torch.float16, torch.bfloat16])],
)
def test_many_heads_on_one_key(isa, dtype, heads):
    """One latent and one rotary key of all heads: values are the first features of the keys."""
    for keys, width, value_width in ((1, 5, 5), (49, 40, 33), (700, 288, 256), (1100, 70, 64)):
        q = torch.randn(2, heads, 1, width).to(dtype)
        k = torch.randn(2, 1, keys, width).to(dtype)
        apart = torch.randn(2, 1, keys, value_width).to(dtype)
        for v in (k[..., :value_width], apart, k[..., width - value_width :]):
            with torch.no_grad():
                got = attend(q, k, v, impl="native_decode")
                rows = q.double().transpose(1, 2) @ k.double().mT * width**-0.5
                want = (rows.softmax(-1) @ v.double()).transpose(1, 2)
            assert_close(got, want, n=keys)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_without_end_reach_the_heads_that_see_them(isa, value):
    q, k = torch.randn(1, 40, 1, 32), torch.randn(1, 2, 130, 32)
    k[0, 1, 60, 3] = value
    with torch.no_grad():
        out = attend(q, k, k, impl="native_decode")
        want = attend(q, k, k, impl="reference")
    assert torch.equal(out.isfinite(), want.isfinite())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("of", ["keys", "values"])
def test_hidden_numbers_are_never_read(isa, of, value):
    q, k, v = (torch.randn(2, 2, n, 16) for n in (2, 90, 90))
    bad = (k if of == "keys" else v).clone()
    bad[:, 1, 60, 3] = value
    k, v = (bad, v) if of == "keys" else (k, bad)
    with torch.no_grad():
        for given in (
            {"pattern": Window(5) & Causal()},
            {"valid": torch.arange(90)[None].ne(60).expand(2, 90)},
            {"mask": torch.arange(90).ne(60).expand(1, 1, 2, 90)},
            {"pattern": Window(5) & Causal(), "valid": torch.arange(90)[None].ge(70).expand(2, 90)},
        ):
            assert attend(q, k, v, impl="native_decode", **given).isfinite().all()
        mask = torch.ones(1, 1, 2, 90, dtype=torch.bool)
        mask[..., 1, 60] = False
        out = attend(q, k, v, impl="native_decode", mask=mask)
        assert out[:, 1, 0].isnan().all()
        assert out[:, 1, 1].isfinite().all()
        assert out[:, 0].isfinite().all()
        alone = torch.arange(90).eq(60).expand(1, 1, 2, 90)
        assert attend(q, k, v, impl="native_decode", mask=alone)[:, 1].isnan().all()


def test_a_visible_nan_is_not_hidden_by_invisible_keys(isa):
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 40, 16)
    k[:, :, 3] = torch.nan
    with torch.no_grad():
        mask = torch.arange(40).eq(3).expand(1, 1, 1, 40)
        assert attend(q, k, k, mask=mask, impl="native_decode").isnan().all()
        assert attend(q, k, k, impl="native_decode").isnan().all()


def test_a_query_that_sees_nothing_gives_0(isa):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 40, 8)
    with torch.no_grad():
        valid = torch.zeros(2, 40, dtype=torch.bool)
        valid[1] = True
        out = attend(q, k, k, valid=valid, impl="native_decode")
        assert not out[0].any()
        assert out[1].all()
        few = attend(q, k[:, :, :1], k[:, :, :1], pattern=Causal(), impl="native_decode")
        assert not few[:, :, :2].any()
        assert few[:, :, 2].all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_for_the_same_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q, k, v = (torch.randn(1, n, t, 64) for n, t in ((8, 1), (2, 3000), (2, 3000)))
        runs = [as_specified(q, k, v) for _ in range(4)]
        assert all(torch.equal(run, runs[0]) for run in runs)
    finally:
        torch.set_num_threads(before)


def test_a_forked_process_computes_the_same():
    q, k, v = (torch.randn(1, 2, n, 64) for n in (1, 2000, 2000))
    want = as_specified(q, k, v)
    child = os.fork()
    if not child:
        with torch.inference_mode():
            os._exit(0 if torch.equal(attend(q, k, v, impl="native_decode"), want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_where_it_is_chosen(monkeypatch):
    monkeypatch.setattr(library, "instructions", lambda: "avx2")
    long = replace(PLAIN, keys=2048)
    assert choose(long) is DECODE
    assert choose(replace(long, grad=True)).name == "fused"
    assert "not native_decode: it has no gradients" in explain(replace(long, grad=True))
    assert choose(PLAIN) is DECODE
    masked = {"pattern": Window(9)}, {"plain": False}, {"position": Alibi()}
    for change in ({"queries": 2}, {"queries": MAX_QUERIES}, *masked):
        assert choose(replace(PLAIN, **change)) is DECODE
    assert choose(replace(PLAIN, queries=MAX_QUERIES + 1)) is not DECODE
    assert explain(long).startswith("native_decode: own kernels for few queries on a CPU\n")
    half = replace(PLAIN, dtype=torch.bfloat16)
    for present, chosen in ((frozenset(), DECODE), (frozenset({"amx_bf16"}), FUSED)):
        monkeypatch.setattr(CHOICES, "capabilities", lambda present=present: present)
        assert choose(half) is chosen
    assert "not native_decode: slower" in explain(half)
    assert choose(replace(half, queries=2)) is DECODE
    few = FEW_PAIRS // AMX_ROWS
    for shared, keys, chosen in (
        (2, few + 1, DECODE), (2, few, FUSED), (1, few + 1, FUSED), (AMX_ROWS, few + 1, FOLDED),
        (AMX_ROWS, few, FUSED),
    ):  # fmt: skip
        grouped = replace(half, keys=keys, num_heads=AMX_ROWS, num_kv_heads=AMX_ROWS // shared)
        assert choose(grouped) is chosen
    assert choose(replace(PLAIN, dtype=torch.float16, keys=1024)) is DECODE
    monkeypatch.setattr(library, "instructions", lambda: "neon")
    assert choose(long) is not DECODE
    assert choose(long, "native_decode") is DECODE
    assert choose(replace(long, queries=2)) is DECODE


def test_gradients_are_refused():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 9, 8)
    attend(q, k, k, impl="native_decode")
    for given in ((q, k, k), (k, q, k), (k, k, q)):
        q_, k_, v_ = (x.clone().requires_grad_(x is q) for x in given)
        at = (q_[:, :, :1], k_, v_) if k_.shape == v_.shape else (q_[:, :, :1], *[k_ + v_] * 2)
        with pytest.raises(UnsupportedError, match="impl='native_decode'"):
            attend(*at, impl="native_decode")


def test_instructions_are_cached():
    assert capabilities() is capabilities()


REFUSED = {
    "read float32, float16, bfloat16, not torch.float64": {"dtype": torch.float64},
    "kernels are for the CPU": {"device": "cuda"},
    "dropping needs the weights": {"dropping": True},
    "of biases it knows Alibi's, not Ahead's": {"position": Ahead()},
    "there is no query or no key": {"keys": 0, "dropping": True},
    "heads have widths of at most 576, not 8 and 600": {"value_dim": 600, "plain": False},
    "not 1024 and 1024": {"value_dim": 1024, "head_dim": 1024, "plain": False},
    "129 heads of 1 queries share keys": {"num_heads": 129, "num_kv_heads": 1, "plain": False},
    "gives pairs no weights": {"kernel": Elu()},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    problem = replace(PLAIN, **REFUSED[message])
    with torch.no_grad():
        with pytest.raises(UnsupportedError, match=message):
            choose(problem, "native_decode")
        assert choose(problem).name != "native_decode"
        assert message in explain(problem)
    assert any(
        "at most 8 queries, not 9" in reason for reason in DECODE.refuses(replace(PLAIN, queries=9))
    )


def test_without_kernels(no_kernels):
    with torch.no_grad():
        assert choose(PLAIN).name == "fused"
        with pytest.raises(UnsupportedError, match="no native kernels: they were not built"):
            choose(PLAIN, "native_decode")


def test_a_graph_holds_it():
    q, k, v = (torch.randn(3, 1, 2, n, 8) for n in (1, 20, 20))
    with torch.no_grad():
        torch._dynamo.reset()
        layer = Attention(AttentionSpec(d_model=16, num_heads=2), impl="native_decode")
        graph = torch.compile(layer, backend="aot_eager", fullgraph=True)
        x, memory, valid = torch.randn(1, 1, 16), torch.randn(1, 20, 16), torch.rand(1, 20) > 0.3
        assert_close(graph(x, memory, valid=valid), layer(x, memory, valid=valid), n=64)
        slopes, places = slopes_of(Alibi(), 2), torch.arange(20)[None]
        args = (
            1 << 40,
            0,
            slopes,
            valid[:, None, None],
            places[:, 19:],
            places,
            torch.randn(2),
            0.25,
            2.0,
        )
        torch.library.opcheck(torch.ops.suffice.native_decode.default, (q[0], k[0], v[0], *args))


def test_the_flops_are_counted():
    register_flops()
    q, k = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 50, 16)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        attend(q, k, k, impl="native_decode")
        attend(q, k, k, pattern=Window(9) & Causal(), impl="native_decode")
    assert counter.get_total_flops() == 2 * 2 * 4 * (50 + 9) * 32


def test_it_is_the_op_of_one_token():
    spec = AttentionSpec(d_model=32, num_heads=4, pattern=Causal(), position=Alibi())
    with torch.no_grad():
        assert choose(AttentionCall.of(spec, 1, 500)) is DECODE
        assert choose(AttentionCall.of(spec, 1, 500, plain=False)) is DECODE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["optimised", "super_attention"])
def test_values_of_another_dtype_than_the_keys(name, dtype):
    """Under autocast columns of x stay float32 beside what a map gives in half precision."""
    options = {"length": 8} if name == "super_attention" else {}
    layer = Attention(preset(name, 32, 2, causal=True, **options), impl="native_decode").eval()
    x = normal(2, 5, 32, seed=1).float()
    with torch.no_grad():
        want = layer(x)
        with torch.autocast("cpu", dtype=dtype):
            got = layer(x)
    assert got.dtype is dtype
    assert (got - want).abs().max() < 0.05
