"""Products of any small sizes, kinds, groups and addresses against float64."""

from __future__ import annotations

import random

import pytest
import torch

from suffice.ops.native.matrix import COLUMNS, multiply, numbers_of, structure_of
from suffice.testing import assert_close
from tests.ops.native.codings import coded_inputs, drawn_codes, isa, needs_kernels

__all__ = ["isa"]

pytestmark = needs_kernels
CASES, KINDS = 40, (torch.float32, torch.float16, torch.bfloat16)


def off_by_one(tensor):
    """Return the numbers one element behind where memory was given."""
    room = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
    room[1:] = tensor.flatten()
    return room[1:].view(tensor.shape)


def drawn_matrix(pick, seed):
    """Return the structure of a matrix, its numbers, and the group of codes."""
    make = torch.Generator().manual_seed(seed)
    outputs = pick.choice((1, 2, 3, 15, 16, 17, pick.randint(1, 90)))
    move = pick.choice((off_by_one, lambda tensor: tensor))
    bias = move(torch.randn(outputs, generator=make)) if pick.random() < 0.5 else None
    if pick.random() < 0.5:
        inputs = pick.choice((1, 2, 15, 16, 17, 31, pick.randint(1, 130)))
        weight = torch.randn(outputs, inputs, generator=make).to(pick.choice(KINDS))
        weight = move(weight)
        return (weight, bias), weight.double(), None
    bits = pick.choice((8, 4))
    group = COLUMNS[bits] * pick.randint(1, 12)
    packed, _, _ = drawn_codes(outputs, group * pick.randint(1, 4), bits, group, seed)
    for name in ("codes", "scales"):  # frozen: it is the same matrix at another address
        object.__setattr__(packed, name, move(getattr(packed, name)))
    return (packed, bias), numbers_of(packed).double(), group


@pytest.mark.parametrize("seed", range(CASES))
def test_any_product(isa, seed):
    pick = random.Random(seed)
    (weight, bias), numbers, group = drawn_matrix(pick, seed)
    matrix = structure_of(weight, bias)
    for rows in (1, pick.randint(2, 9), pick.choice((0, 12, 33))):
        x = off_by_one(torch.randn(rows, numbers.shape[1]) * 10 ** pick.uniform(-3, 3))
        got = multiply(matrix, x)
        assert got.shape == (rows, numbers.shape[0])
        if not rows:
            continue
        want = (x.double() if group is None else coded_inputs(x, group)) @ numbers.t()
        scale = x.abs().max().double() * numbers.abs().max().clamp(min=1e-3)
        if bias is not None:
            want, scale = want + bias, scale.clamp(min=bias.abs().max())
        if group is not None:  # a code half-way between two may be either
            scale = scale * 1.02
            assert (got - want).abs().max() <= scale / 64 * numbers.shape[1] ** 0.5
            continue
        assert_close(got / scale, want / scale, n=numbers.shape[1])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-38, 1e-36, 1e-30, 1e30, 1e34])
@pytest.mark.parametrize("bits", [8, 4])
def test_inputs_of_every_size_have_codes(isa, size, bits):
    packed, _, _ = drawn_codes(20, 64, bits, 32)
    x = torch.randn(9, 64).clamp(-1, 1) * size
    got = multiply(structure_of(packed, None), x)
    want = x.double() @ numbers_of(packed).double().t()
    biggest = numbers_of(packed).double().abs().max()
    # half a step of each input; what is below 1e-33 counts as 0
    allowed = biggest * (x.abs().max().double() / 8 + 64e-33)
    assert ((got - want).abs() <= allowed).all()
