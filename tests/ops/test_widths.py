"""Values wider or narrower than keys: every op equals the float64 reference or refuses."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from suffice.errors import UnsupportedError
from suffice.kernels import Elu, Favor, Softmax
from suffice.ops import OPS, AttentionCall, MaskInputs, choose
from suffice.ops.native import library
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full, Window
from suffice.testing import assert_close, normal, padded

WIDTHS = {"D=16, E=32": (16, 32), "D=24, E=16": (24, 16)}
CASES = [
    (Softmax(), Full(), None),
    (Softmax(), Causal(), None),
    (Softmax(), Window(9) & Causal(), None),
    (Softmax(), Window(9) & Causal(), padded(2, 40, "inside")),
    (Elu(), Causal(), None),
    (Favor(20), Full(), padded(2, 40, "left")),
]
REFUSED = {"flex": "CUDA"}
ONE_QUERY = "native_decode"


def results(op, inputs, masks, call, parts):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = op(*leaves, masks, call, parts)
    grad = normal(*out.shape, seed=9, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("impl", OPS)
def test_equals_the_reference_or_refuses(impl, widths):
    (width, value_width), computed = WIDTHS[widths], 0
    for kernel, pattern, valid in CASES:
        masks = MaskInputs(valid=valid)
        describe = partial(
            AttentionCall, queries=40, keys=40, num_heads=4, num_kv_heads=2, head_dim=width,
            value_dim=value_width, scale=0.2, pattern=pattern, kernel=kernel, plain=masks.plain,
        )  # fmt: skip
        call = describe(dtype=torch.float32)
        if OPS[impl].refuses(call):
            continue
        computed += 1
        sizes = (4, width), (2, width), (2, value_width)
        inputs = [normal(2, h, 40, w, seed=h + w, dtype=torch.float32) for h, w in sizes]
        exact = [x.double() for x in inputs]
        parts = Parts(features=kernel.build(head_dim=width, scale=0.2, device=None))
        got = results(OPS[impl], inputs, masks, call, parts)
        want = results(OPS["reference"], exact, masks, describe(dtype=torch.float64), parts)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, n=400)
    absent = impl.startswith("native") and not library.available()
    assert bool(computed) != (impl in REFUSED or impl == ONE_QUERY or absent)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.skipif(not library.available(), reason="no kernels")
def test_a_single_query_reads_values_of_another_width(widths):
    width, value_width = WIDTHS[widths]
    describe = partial(
        AttentionCall, queries=1, keys=40, num_heads=4, num_kv_heads=2, head_dim=width,
        value_dim=value_width, scale=0.2, kernel=Softmax(),
    )  # fmt: skip
    sizes = (1, 4, width), (40, 2, width), (40, 2, value_width)
    q, k, v = (normal(2, h, t, w, seed=h + w, dtype=torch.float32) for t, h, w in sizes)
    masks = MaskInputs()
    call = describe(dtype=torch.float32)
    got = choose(call, ONE_QUERY)(q, k, v, masks, call, Parts())
    exact = describe(dtype=torch.float64)
    want = OPS["reference"](q.double(), k.double(), v.double(), masks, exact, Parts())
    assert_close(got, want, n=400)


@pytest.mark.parametrize("impl", REFUSED)
def test_refusals_name_the_widths(impl):
    call = AttentionCall(
        queries=1, keys=40, num_heads=4, num_kv_heads=2, head_dim=16, value_dim=32, scale=0.2
    )
    with pytest.raises(UnsupportedError, match=REFUSED[impl]):
        choose(call, impl)
    assert choose(call).name not in REFUSED
