"""Norms, gated activations, rotary embeddings, convolutions and token steps of the kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from suffice.ops.native import library, stock
from suffice.testing import assert_close

pytestmark = pytest.mark.skipif(not library.available(), reason=library.why_not())

WIDTHS = (5, 16, 40)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(ours, theirs, *inputs):
    """Compare values, and gradients of what needs them, with the same in float64."""
    values = []
    for function, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        mine = [x if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
        out = function(*mine)
        (out * torch.linspace(-1, 2, out.numel(), dtype=dtype).view(out.shape)).sum().backward()
        values.append([out, *(x.grad for x in mine if x is not None)])
    for got, want in zip(*values, strict=True):
        assert_close(got, want.float(), n=100)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("order", [stock.UNGATED, stock.GATE_FIRST, stock.GATE_LAST])
def test_norms_of_groups(width, offset, order):
    def theirs(x, weight, *gates):
        gate = gates[0] if gates else x
        if order == stock.GATE_FIRST:
            x = x * F.silu(gate)
        parts = x.unflatten(-1, (2, width))
        parts = parts * (parts.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
        out = parts.flatten(-2) * (weight + offset)
        return out * F.silu(gate) if order == stock.GATE_LAST else out

    def ours(x, weight, gate=None):
        return stock.norm(x, weight, gate, eps=1e-3, offset=offset, order=order, width=width)

    gates = [drawn(3, 50, 2 * width, seed=2)] if order else []
    compare(ours, theirs, drawn(3, 50, 2 * width), drawn(2 * width, seed=1), *gates)


def test_norms_of_parts_and_of_turned_heads():
    x = drawn(2, 7, 3, 40)
    part, weight = x[..., 8:24], drawn(16, seed=1)
    want = F.rms_norm(part, (16,), weight, 1e-5)
    assert_close(stock.norm(part, weight, eps=1e-5), want)
    heads = part.transpose(1, 2)
    assert_close(stock.norm(heads, weight, eps=1e-5), want.transpose(1, 2))


ACTIVATIONS = {
    library.SWIGLU: F.silu,
    library.GEGLU: F.gelu,
    library.GEGLU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("number", ACTIVATIONS)
def test_gated_activations(number):
    compare(
        lambda gate, up: stock.glu(gate, up, number),
        lambda gate, up: ACTIVATIONS[number](gate) * up,
        drawn(3, 61, 151) * 3,
        drawn(3, 61, 151, seed=1),
    )


@pytest.mark.parametrize("turned", [10, 34])
@pytest.mark.parametrize("batch", [1, 2])
def test_rotary_embeddings(turned, batch):
    tables = drawn(batch, 6, turned, seed=1), drawn(batch, 6, turned, seed=2)

    def theirs(x):
        cos, sin = (table[:, None].to(x.dtype) for table in tables)
        first, second = x[..., :turned].chunk(2, dim=-1)
        out = x[..., :turned] * cos + torch.cat([-second, first], dim=-1) * sin
        return torch.cat([out, x[..., turned:]], dim=-1)

    compare(lambda x: stock.rotate(x, *tables), theirs, drawn(2, 3, 6, 34))


DOCUMENTS = torch.tensor([[0] * 30 + [1] * 2 + [2] * 38, [0] * 70])


@pytest.mark.parametrize("channels", [5, 40, 256, 300])  # stretches of 256
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize("bias", [None, "drawn"])
def test_convolutions(channels, silu, documents, bias):
    def theirs(x, weight, bias):
        out = torch.zeros(()) if bias is None else bias
        for back in range(4):
            earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            if documents is not None:
                same = documents[:, back:] == documents[:, : x.shape[1] - back]
                earlier = earlier * F.pad(same, (back, 0))[..., None]
            out = out + earlier * weight[:, 3 - back]
        return F.silu(out) if silu else out

    bias = None if bias is None else drawn(channels, seed=2)
    ours = lambda *x: stock.convolve(*x, documents, silu)  # noqa: E731
    compare(ours, theirs, drawn(2, 70, channels), drawn(channels, 4, seed=1), bias)


def test_saved_tensors_may_come_back_with_other_strides():
    gradients = []
    for offloads in (False, True):
        whole = drawn(2, 70, 24).requires_grad_()
        weight, gate = drawn(16, 4, seed=1).requires_grad_(), drawn(2, 70, 24, seed=2)
        pack = torch.Tensor.clone if offloads else lambda x: x
        unpack = torch.Tensor.contiguous if offloads else lambda x: x
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = stock.convolve(whole[..., 4:20], weight, None, DOCUMENTS, True)
            options = {"eps": 1e-5, "order": stock.GATE_FIRST}
            out = out + stock.norm(whole[..., :16], weight[:, 0], gate[..., 8:], **options)
        out.square().sum().backward()
        gradients.append((whole.grad, weight.grad))
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want)


def test_convolutions_shorter_than_their_weights():
    x, weight = drawn(1, 2, 5), drawn(5, 4, seed=1)
    want = F.conv1d(x.mT, weight[:, None], padding=3, groups=5)[..., :2].mT
    assert_close(stock.convolve(x, weight, None, None, False), want)
