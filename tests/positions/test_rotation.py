"""Rotary positions: distances only, lengths kept, fp32 angles; what is refused."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.positions import NoPosition, Rope
from suffice.testing import assert_close, normal


def test_products_depend_on_the_distance_only():
    rope, x, y = Rope(), normal(1, 1, 1, 8, seed=1), normal(1, 1, 1, 8, seed=2)

    def product(p, q):
        return (rope.rotate(x, torch.tensor([p])) * rope.rotate(y, torch.tensor([q]))).sum()

    for shift in (1, 10, 1000):
        assert_close(product(3 + shift, 1 + shift), product(3, 1), n=8)
    assert (product(3, 1) - product(3, 2)).abs() > 1e-3


def test_position_zero_changes_nothing_and_lengths_are_kept():
    x = normal(2, 3, 4, 8, seed=1)
    assert_close(Rope().rotate(x, torch.zeros(4).long()), x)
    turned = Rope().rotate(x, torch.arange(4) + 100)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_one_position_row_for_each_row_of_a_batch():
    x = normal(2, 3, 4, 8, seed=1)
    at = torch.tensor([[0, 1, 2, 3], [5, 5, 9, 0]])
    got = Rope().rotate(x, at)
    for row in range(2):
        assert_close(got[row : row + 1], Rope().rotate(x[row : row + 1], at[row]), "exact")


@pytest.mark.parametrize("theta", [1.0, 0.5, 0.0, -3.0])
def test_bases(theta):
    with pytest.raises(ConfigError, match=r"Rope\(theta=.*\): give a base above 1"):
        Rope(theta)


def test_odd_widths():
    assert Rope().conflicts(8) == []
    assert Rope().conflicts(7) == ["Rope turns features in pairs: head_dim=7 is odd; make it even."]
    assert NoPosition().conflicts(7) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rotation_in_lower_types_is_the_rounded_rotation(dtype):
    x = normal(1, 2, 5, 8, seed=1, dtype=dtype)
    at = torch.tensor([0, 7, 511, 1857, 100_000])
    got = Rope().rotate(x, at)
    assert got.dtype is dtype
    exact = Rope().rotate(x.double(), at)
    assert_close(got, exact, n=2)
    if dtype is not torch.float32:  # rounded once: products and sums are fp32
        assert (got == exact.to(dtype)).double().mean() > 0.95


def test_no_position_returns_its_input():
    x = normal(1, 1, 2, 4, seed=1)
    assert NoPosition().rotate(x, torch.arange(2)) is x
    assert not NoPosition().absolute
    assert Rope().absolute


def test_gradient():
    x = normal(1, 1, 3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Rope(10.0).rotate(x, torch.arange(3)), x)
