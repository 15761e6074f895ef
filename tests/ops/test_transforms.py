"""An op that is named runs or refuses, whatever torch does to the call; "auto" always computes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from suffice import Attention, AttentionSpec
from suffice.errors import UnsupportedError
from suffice.kernels import Elu, Softmax
from suffice.memory import Quantised
from suffice.ops import OPS, AttentionCall, MaskInputs, dispatch, matmul, scan
from suffice.ops.native import library
from suffice.ops.op import Parts
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition
from suffice.testing import assert_close, drawn, normal

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
NAMES = [name for name in OPS if name != "flex"]


def inputs(length=24):
    sizes = (4, length), (2, length), (2, length)
    return [normal(2, h, t, 8, seed=i, dtype=torch.float32) for i, (h, t) in enumerate(sizes)]


def kernel_of(impl):
    return Elu() if impl in ("scan", "native_scan") else Softmax()


def attention(impl, kernel=None, pattern=None):
    """Return q, k, v -> outputs, as a caller of `plan` computes them."""
    kernel = kernel or kernel_of(impl)
    if pattern is None:
        pattern = Window(5) & Causal() if kernel.lane == "pairs" else Causal()
    position = NoPosition()
    parts = Parts(features=kernel.build(head_dim=8, scale=0.3, device=None))

    def attend(q, k, v):
        call = AttentionCall(
            queries=q.shape[2], keys=k.shape[2], num_heads=4, num_kv_heads=2, head_dim=8,
            value_dim=8, scale=0.3, pattern=pattern, kernel=kernel, position=position,
            dtype=q.dtype,
        )  # fmt: skip
        return dispatch.plan(call, impl)(q, k, v, MaskInputs(), call, parts)

    return attend


def under_jvp(attend, q, k, v):
    return jvp(lambda q: attend(q, k, v), (q,), (q.cos(),))[1]


def under_dual_numbers(attend, q, k, v):
    with forward_ad.dual_level():
        out = attend(forward_ad.make_dual(q, q.cos()), k, v)
        return forward_ad.unpack_dual(out).tangent


def under_autocast(attend, q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return attend(q, k, v)


def compiled(attend, q, k, v):
    torch._dynamo.reset()
    return torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v)


def forward_over_reverse(f, x):
    try:
        return jvp(grad(f), (x,), (x.cos(),))
    except NotImplementedError:
        if __debug__:
            raise
        pytest.skip("with python -O torch has no forward derivative of a softmax's gradient")


CONTEXTS = {
    "vmap": lambda attend, *x: vmap(attend)(*(torch.stack([y, 2 * y]) for y in x)),
    "grad": lambda attend, q, k, v: grad(lambda q: attend(q, k, v).square().sum())(q),
    "grad of a value that is not q, k or v": lambda attend, *x: grad(
        lambda scale: (scale * attend(*x)).square().sum()
    )(torch.ones(())),
    "vmap of grad": lambda attend, *x: vmap(
        grad(lambda q, k, v: attend(q[None], k[None], v[None]).square().sum())
    )(*x),
    "jvp": under_jvp,
    "dual numbers": under_dual_numbers,
    "jvp of grad": lambda attend, q, k, v: forward_over_reverse(
        lambda q: attend(q, k, v).square().sum(), q
    )[1],
    "autocast": under_autocast,
    "compile": compiled,
}


@pytest.fixture
def runs(monkeypatch):
    """Names of the ops that run; an op that hands over to another one fails."""
    names = []

    def counted(op):
        def run(*args):
            names.append(op.name)
            return op.run(*args)

        return replace(op, run=run)

    def no_substitute(*_):
        raise AssertionError("an op handed the call to another one")

    monkeypatch.setattr(matmul, "attend", no_substitute)
    monkeypatch.setattr(scan, "attend", no_substitute)
    for name, op in OPS.items():
        monkeypatch.setitem(OPS, name, counted(op))
    dispatch.forget_plans()
    yield names
    dispatch.forget_plans()


AS_WITHOUT = {"autocast", "compile"}  # where the outputs are what they are without
TRANSFORMS = set(CONTEXTS) - AS_WITHOUT
TANGENTS = {"jvp", "dual numbers", "jvp of grad"}
REFUSED = {
    "fused": TANGENTS, "folded": TANGENTS, "matmul": (), "scan": (), "reference": ()
}  # fmt: skip


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("impl", NAMES)
def test_a_named_op_runs_or_refuses(runs, impl, context):
    if impl.startswith("native") and not library.available():
        pytest.skip("no native kernels were built")
    few = impl == "native_decode"
    x = inputs(length=5 if few else 24)
    without_gradients = torch.no_grad() if few else nullcontext()
    if context in REFUSED.get(impl, TRANSFORMS):
        with pytest.raises(UnsupportedError, match=f"impl='{impl}'"), without_gradients:
            CONTEXTS[context](attention(impl), *x)
        assert not runs
        return
    with without_gradients:
        got = CONTEXTS[context](attention(impl), *x)
    assert set(runs) == {impl}
    with torch.no_grad() if few else nullcontext():
        exact = attention("reference", kernel_of(impl))
        want = exact(*x) if context in AS_WITHOUT else CONTEXTS[context](exact, *x)
    if context == "autocast":
        assert (got.float() - want).abs().max() < 0.05
    else:
        assert_close(got, want, n=1 << 10)


@pytest.mark.parametrize("context", sorted(TRANSFORMS))
def test_the_automatic_choice_computes_long_calls(context):
    """Outside of the transform another op is chosen, for which torch has no rules."""
    x, pattern = inputs(length=520), Window(5) & Causal()
    outside = attention("auto", pattern=pattern)
    outside(*x)
    got, want = (
        CONTEXTS[context](attention(impl, pattern=pattern), *x) for impl in ("auto", "reference")
    )
    assert_close(got, want, n=1 << 12)


def test_a_quantised_cache_that_was_read_without_gradients_gives_them_later():
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal())
    layer = Attention(spec)
    state, x = layer.state(Quantised(block=4, recent=2)), torch.randn(1, 12, 16)
    with torch.no_grad():
        for at in range(10):
            layer(x[:, at : at + 1], state=state)
    last = x[:, 10:11].clone().requires_grad_()
    out = layer(last, state=state)
    assert torch.autograd.grad(out.sum(), last)[0].any()
    assert torch.autograd.grad(layer(x[:, 11:], state=state).sum(), layer.q_proj.weight)[0].any()


@pytest.mark.parametrize(("impl", "heads"), [("fused", 4), ("folded", 2)])
def test_layers_refuse_forward_derivatives_of_fused_kernels(impl, heads):
    spec = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=heads, pattern=Causal())
    x = normal(2, 3, 16, seed=1)
    layers = [drawn(Attention(spec, impl=i, dtype=torch.float64), seed=2) for i in (impl, "auto")]
    with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
        jvp(layers[0], (x,), (x,))
    layers[1].impl = "reference"
    want = forward_over_reverse(lambda x: layers[1](x).square().sum(), x)
    layers[1].impl = "auto"
    got = forward_over_reverse(lambda x: layers[1](x).square().sum(), x)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, n=16)
