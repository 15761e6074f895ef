"""Seeded inputs: repeatable, and as awkward as promised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import Attention, preset
from suffice.errors import ConfigError
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.testing import bits, documents, drawn, normal, padded, spec_around


def test_seeds_repeat_and_differ():
    for make in (lambda seed: normal(4, seed=seed), lambda seed: bits(40, seed=seed)):
        assert torch.equal(make(1), make(1))
        assert not torch.equal(make(1), make(2))
    assert torch.equal(documents(3, 30, seed=1), documents(3, 30, seed=1))
    assert not torch.equal(documents(3, 30, seed=1), documents(3, 30, seed=2))


def test_the_global_state_is_left_alone():
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    normal(9, seed=3), bits(9, seed=3), documents(2, 9), padded(2, 9, "inside")
    drawn(nn.Linear(2, 2, dtype=torch.float64), seed=1)
    torch.manual_seed(0)
    normal(9, seed=3)
    assert torch.equal(torch.rand(3), want)


def test_dtypes_share_their_numbers():
    assert torch.equal(normal(9, seed=1).float(), normal(9, seed=1, dtype=torch.float32))
    assert normal(9, seed=1).dtype is torch.float64


def test_share_of_bits():
    assert abs(bits(10_000, seed=1, share=0.3).float().mean() - 0.3) < 0.02
    assert bits(9, seed=1, share=1.0).all()


def test_every_parameter_is_drawn():
    layer = drawn(Attention(preset("super_attention", 8, 2, length=5)), seed=1)
    for parameter in layer.parameters():
        assert parameter.ne(0).all()
        assert parameter.std() > 0.1
    flat = torch.cat([p.flatten()[:5] for p in layer.parameters()])
    assert len(flat.unique()) == len(flat)
    twin = drawn(Attention(preset("super_attention", 8, 2, length=5)), seed=1)
    pairs = zip(layer.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_padding(side, length):
    valid = padded(7, length, side)
    assert valid.shape == (7, length)
    assert valid.sum(1).tolist() == [length - row % length for row in range(7)]
    for row in valid.tolist():
        if side == "left":
            assert row == sorted(row)
        if side == "right":
            assert row == sorted(row, reverse=True)


def test_padding_inside_has_holes():
    rows = padded(5, 9, "inside", seed=1).tolist()
    assert any(row not in (sorted(row), sorted(row, reverse=True)) for row in rows)


def test_padding_refusals():
    with pytest.raises(ConfigError, match="unknown side 'middle'"):
        padded(2, 3, "middle")
    with pytest.raises(ConfigError, match="length=0"):
        padded(2, 0, "left")


def test_documents_are_runs_from_zero():
    numbers = documents(20, 9, seed=1)
    assert (numbers[:, 0] == 0).all()
    steps = numbers[:, 1:] - numbers[:, :-1]
    assert set(steps.unique().tolist()) == {0, 1}
    assert documents(2, 1).tolist() == [[0], [0]]


def test_spec_around():
    spec = spec_around(Causal(), Rope(), d_model=12, bias=False)
    assert (spec.pattern, spec.position, spec.d_model, spec.bias) == (Causal(), Rope(), 12, False)
    assert spec_around().num_heads == 2


def test_spec_around_refusals():
    with pytest.raises(ConfigError, match="3 is not an axis value"):
        spec_around(3)
    with pytest.raises(ConfigError, match=r"Full\(\) and Causal\(\) are both a pattern"):
        spec_around(Full(), Causal())
    with pytest.raises(ConfigError, match="give the longest input"):
        spec_around(Alignment(0))
