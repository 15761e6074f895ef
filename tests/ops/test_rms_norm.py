"""The root-mean-square norm equals its formula: values, all derivatives, every way to call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from suffice.ops.rms_norm import rms_norm
from suffice.testing import assert_close, normal

EPS = 1e-3
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def formula(x, weight, eps=EPS):
    x, weight = x.double(), weight.double()
    return x / torch.sqrt((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + eps) * weight


def operands(*shape, dtype=torch.float64, learning=False):
    x, weight = normal(*shape, seed=1, dtype=dtype), normal(shape[-1], seed=2, dtype=dtype)
    return x.requires_grad_(learning), weight.requires_grad_(learning)


@pytest.mark.parametrize("shape", [(6,), (3, 5), (2, 3, 7), (1, 1, 1)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("learning", [False, True])
def test_values(learning, dtype, shape):
    x, weight = operands(*shape, dtype=dtype, learning=learning)
    got = rms_norm(x, weight, EPS)
    assert got.dtype is dtype
    assert_close(got, formula(x, weight), n=shape[-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("learning", [False, True])
def test_a_gate_multiplies_by_its_silu(learning, dtype):
    for shape in ((5, 19), (2, 3, 32)):
        x, weight = operands(*shape, dtype=dtype, learning=learning)
        gate = normal(*shape, seed=3, dtype=dtype)
        got = rms_norm(x, weight, EPS, gate)
        assert got.dtype is dtype
        assert_close(got, formula(x, weight) * F.silu(gate.double()), n=shape[-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("learning", [False, True])
def test_half_inputs_beside_full_weights_are_rounded_once(dtype, learning):
    """As under autocast: nearly all results are the nearest number."""
    x, weight = normal(64, 48, seed=1, dtype=dtype), normal(48, seed=2, dtype=torch.float32)
    got = rms_norm(x.requires_grad_(learning), weight, EPS)
    nearest = formula(x, weight).to(dtype)
    assert (got == nearest).double().mean() > 0.99


def test_rows_in_any_layout():
    x, weight = operands(4, 6, 5)
    assert_close(rms_norm(x.transpose(0, 1), weight, EPS), formula(x, weight).transpose(0, 1))
    assert_close(rms_norm(x[:, ::2], weight, EPS), formula(x, weight)[:, ::2])
    assert rms_norm(x[:0], weight, EPS).shape == (0, 6, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("learning", [False, True])
def test_half_inputs_are_squared_in_fp32(learning, dtype):
    x, weight = operands(2, 8, dtype=dtype, learning=learning)
    for size in (300.0, 1e-4):
        assert_close(rms_norm(x * size, weight, 1e-12), formula(x * size, weight, 1e-12))


def test_half_inputs_meet_fp32_weights():
    x, weight = normal(2, 6, seed=1, dtype=torch.bfloat16), normal(6, seed=2, dtype=torch.float32)
    x.requires_grad_()
    weight.requires_grad_()
    out = rms_norm(x, weight, EPS)
    assert out.dtype is torch.bfloat16
    assert_close(out, formula(x, weight))
    out.sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


def test_a_row_of_zeros_stays_zero():
    x = torch.zeros(2, 4, requires_grad=True)
    out = rms_norm(x, torch.ones(4), EPS)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(2, 4))
    assert_close(x.grad, torch.full((2, 4), EPS**-0.5))


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 5)])
def test_derivatives(shape):
    def norm(x, weight):
        return rms_norm(x, weight, EPS)

    pair = operands(*shape, learning=True)
    assert torch.autograd.gradcheck(norm, pair)
    assert torch.autograd.gradgradcheck(norm, pair)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients_are_the_formulas(dtype, again):
    """Whether they are to be differentiated once more or not."""
    pair = operands(2, 3, 9, dtype=dtype, learning=True)
    weights = normal(2, 3, 9, seed=3, dtype=dtype)
    got = torch.autograd.grad((rms_norm(*pair, EPS) * weights).sum(), pair, create_graph=again)
    want = torch.autograd.grad((formula(*pair) * weights.double()).sum(), pair)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b.double(), n=9)


@pytest.mark.parametrize("which", [0, 1])
def test_one_gradient_alone(which):
    pair = operands(3, 4)
    pair[which].requires_grad_()
    rms_norm(*pair, EPS).sum().backward()
    got = pair[which].grad.clone()
    pair[which].grad = None
    formula(*pair).sum().backward()
    assert_close(got, pair[which].grad)
    assert pair[1 - which].grad is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_torchs_transformations_look_into_it():
    x, weight = operands(3, 4)

    def loss(x):
        return rms_norm(x, weight, EPS).square().sum()

    def want(x):
        return formula(x, weight).square().sum()

    assert_close(grad(loss)(x), grad(want)(x))
    assert_close(vmap(loss)(x), vmap(want)(x))
    assert_close(jvp(loss, (x,), (x,))[1], jvp(want, (x,), (x,))[1])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        got = forward_ad.unpack_dual(rms_norm(dual, weight, EPS)).tangent
        assert_close(got, forward_ad.unpack_dual(formula(dual, weight)).tangent)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_one_graph_equals_eager():
    torch._dynamo.reset()
    compiled = torch.compile(rms_norm, backend="eager", fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        pair = operands(2, 3, 8, dtype=dtype, learning=True)
        assert_close(compiled(*pair, EPS), formula(*pair), n=8)
    torch._dynamo.reset()


def test_torchs_own_norm_agrees():
    x, weight = operands(2, 3, 8)
    assert_close(rms_norm(x, weight, EPS), F.rms_norm(x, (8,), weight, EPS))
