"""A packed row equals its documents run alone: outputs, loss and gradients."""

from __future__ import annotations

import pytest
import torch

from suffice.testing import assert_close, documents, normal, padded

from .mechanisms import CROSS, D_MODEL, DOCUMENTED, IN_OPS, LENGTH, layer_of

SIDES = (None, "inside", "left")
CROSS_DOCUMENTED = [name for name in CROSS if name in DOCUMENTED]


def pieces(segments, valid):
    """Index of each document's real positions: (row, positions)."""
    for row, (numbers, keep) in enumerate(zip(segments, valid, strict=True)):
        for number in numbers[keep].unique():
            yield row, (keep & (numbers == number)).nonzero()[:, 0]


CASES = [(name, "auto", side) for name in DOCUMENTED for side in (None, "left", "right", "inside")]
CASES += [
    (name, impl, SIDES[number % 3])
    for number, (name, impl) in enumerate(IN_OPS)
    if name in DOCUMENTED[::4] and impl != "auto"
]
"""Every mechanism on every side; some in each of their ops, which `conform` compares for all."""


@pytest.mark.parametrize(("name", "impl", "side"), CASES)
def test_output_loss_and_gradients(name, side, impl):
    layer = layer_of(name, impl=impl)
    x = normal(3, LENGTH, D_MODEL, seed=1).requires_grad_()
    target = normal(3, LENGTH, D_MODEL, seed=2)
    segments = documents(3, LENGTH, seed=3)
    valid = torch.ones(3, LENGTH, dtype=torch.bool) if side is None else padded(3, LENGTH, side)
    data = {"segments": segments} if side is None else {"segments": segments, "valid": valid}
    packed = layer(x, **data)
    sources = [x, *layer.parameters()]
    loss = (packed - target)[valid].square().sum()
    alone = torch.zeros_like(packed)
    total = torch.zeros(())
    for row, at in pieces(segments, valid):
        out = layer(x[row, at][None])[0]
        alone[row, at] = out.detach()
        total = total + (out - target[row, at]).square().sum()
    assert_close(packed[valid], alone[valid])
    assert_close(loss, total)
    for got, want in zip(
        torch.autograd.grad(loss, sources), torch.autograd.grad(total, sources), strict=True
    ):
        assert_close(got, want)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documents_do_not_see_each_other(name):
    layer = layer_of(name)
    x = normal(1, LENGTH, D_MODEL, seed=1)
    segments = torch.tensor([[3] * 4 + [1] * 5])
    want = layer(x, segments=segments)
    other = x.clone()
    other[:, 4:] = 7.0
    assert_close(layer(other, segments=segments)[:, :4], want[:, :4], "exact")
    other = x.clone()
    other[:, :4] = 7.0
    assert_close(layer(other, segments=segments)[:, 4:], want[:, 4:], "exact")


@pytest.mark.parametrize("name", CROSS_DOCUMENTED)
def test_packed_memory(name):
    layer = layer_of(name)
    x, memory = normal(1, 5, D_MODEL, seed=1), normal(1, LENGTH, D_MODEL, seed=2)
    segments = torch.tensor([[0, 0, 1, 1, 1]])
    of_memory = torch.tensor([[0] * 6 + [1] * 3])
    got = layer(x, memory, segments=segments, source_segments=of_memory)
    assert_close(got[:, :2], layer(x[:, :2], memory[:, :6]))
    assert_close(got[:, 2:], layer(x[:, 2:], memory[:, 6:]))


@pytest.mark.parametrize("name", CROSS_DOCUMENTED)
def test_a_document_without_memory_gets_the_output_bias(name):
    layer = layer_of(name)
    x, memory = normal(1, 3, D_MODEL, seed=1), normal(1, 4, D_MODEL, seed=2)
    got = layer(
        x, memory, segments=torch.tensor([[0, 5, 0]]), source_segments=torch.zeros(1, 4).long()
    )
    assert torch.equal(got[0, 1], layer.o_proj.bias)
    assert_close(got[:, [0, 2]], layer(x[:, [0, 2]], memory))
