"""T1: rows with no key to see are exactly zero, and never spoil another row or a gradient."""

from __future__ import annotations

import pytest
import torch

from suffice import attend, masks, weights
from suffice.errors import MaskError
from suffice.testing import assert_close, bits, normal

from .mechanisms import D_MODEL, LENGTH, NAMES, accepting, layer_of
from .oracle import oracle

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
EMPTY = ((0, 2), (1, 6))
MASKED = ("auto", *accepting(7, 9, data={"mask"}))


def problem(dtype):
    q = normal(2, 4, 7, 16, seed=1, dtype=dtype).requires_grad_()
    k, v = (normal(2, 2, 9, 16, seed=s, dtype=dtype).requires_grad_() for s in (2, 3))
    allow = bits(2, 1, 7, 9, seed=4)
    for row, query in EMPTY:
        allow[row, :, query] = False
    return q, k, v, allow


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", MASKED)
def test_value_and_gradient(dtype, impl):
    q, k, v, allow = problem(dtype)
    out = attend(q, k, v, mask=allow, impl=impl)
    assert out.dtype is dtype
    assert_close(out, oracle(q.detach(), k.detach(), v.detach(), allow))
    for row, query in EMPTY:
        assert torch.equal(out[row, :, query], torch.zeros(4, 16, dtype=dtype))
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(torch.isfinite(g).all() for g in gradients)
    for row, query in EMPTY:
        assert torch.equal(gradients[0][row, :, query], torch.zeros(4, 16, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("impl", MASKED)
def test_gradient_is_the_oracles(dtype, impl):
    q, k, v, allow = problem(dtype)
    got = torch.autograd.grad(attend(q, k, v, mask=allow, impl=impl).square().sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expanded = [x.repeat_interleave(2, dim=1) for x in exact[1:]]
    scores = (exact[0] @ expanded[0].mT / 4).masked_fill(~allow, -1e30)
    probabilities = scores.softmax(-1) * allow
    want = torch.autograd.grad((probabilities @ expanded[1]).square().sum(), exact)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, n=28)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_of_empty_rows_are_zero(dtype):
    q, k, _, allow = problem(dtype)
    map_ = weights(q, k, mask=allow)
    assert map_.dtype is dtype
    for row, query in EMPTY:
        assert torch.equal(map_[row, :, query], torch.zeros(4, 9, dtype=dtype))
    others = map_.sum(-1).double().ne(0)
    assert others.sum() == 2 * 4 * 7 - 4 * len(EMPTY)
    assert_close(map_.sum(-1)[others], torch.ones(int(others.sum()), dtype=torch.float64), n=9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [-torch.inf, "lowest"])
def test_additive_spellings_agree(dtype, hidden):
    q, k, v, allow = problem(dtype)
    low = torch.finfo(dtype).min if hidden == "lowest" else hidden
    spelt = torch.zeros(allow.shape, dtype=dtype).masked_fill(~allow, low)
    with pytest.raises(MaskError, match="additive"):
        attend(q, k, v, mask=spelt)
    got = attend(q, k, v, mask=masks.from_additive(spelt))
    assert_close(got, attend(q, k, v, mask=allow), "exact")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ["auto", *accepting(7, 0)])
def test_no_keys(dtype, impl):
    q = normal(2, 4, 7, 16, seed=1, dtype=dtype).requires_grad_()
    k, v = torch.zeros(2, 2, 0, 16, dtype=dtype), torch.zeros(2, 2, 0, 16, dtype=dtype)
    out = attend(q, k, v, impl=impl)
    assert torch.equal(out, torch.zeros(2, 4, 7, 16, dtype=dtype))
    (gradient,) = torch.autograd.grad(out.square().sum(), q)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("name", NAMES)
def test_layer_with_a_fully_padded_row(name):
    layer = layer_of(name)
    x = normal(2, LENGTH, D_MODEL, seed=1).requires_grad_()
    valid = torch.tensor([[False] * LENGTH, [True] * LENGTH])
    out = layer(x, valid=valid)
    nothing = layer.o_proj(torch.zeros(LENGTH, layer.spec.widths.o, dtype=torch.float64))
    assert torch.equal(out[0], nothing)
    assert_close(out[1:], layer(x[1:]))
    for gradient in torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]):
        assert torch.isfinite(gradient).all()
    shown = layer.weights(x, valid=valid)
    assert shown.shape[:3] == (2, layer.spec.query_heads, LENGTH)
    assert_close(shown[0], torch.zeros_like(shown[0]), "exact")
    assert shown[1].any()
