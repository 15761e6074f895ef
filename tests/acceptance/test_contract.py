"""Part 1, 7 and 8: how near the logits of three layers are, and what stays in fp32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from suffice import Attention, attend, weights
from suffice.layers import MLP, Block
from suffice.patterns import Causal
from suffice.testing import drawn, normal

from .mechanisms import accepting, ops_of, spec_of
from .oracle import oracle


def three_layers(impl: str) -> nn.Module:
    """Pre-norm blocks and a head to 61 logits, as a model has them."""
    blocks = []
    for _ in range(3):
        block = Block(spec_of("standard", causal=True), MLP(12, 24))
        block.attention = Attention(block.attention.spec, impl=impl)
        blocks.append(block)
    return drawn(nn.Sequential(*blocks, nn.LayerNorm(12), nn.Linear(12, 61)), seed=3)


@pytest.mark.parametrize("impl", ["auto", *ops_of(spec_of("standard", causal=True))])
def test_logits_of_three_layers(impl):
    x = normal(2, 48, 12, seed=1)
    exact = three_layers("reference").double()(x)
    assert (three_layers(impl).double()(x) - exact).abs().max() <= 1e-9
    single = three_layers(impl)
    assert (single(x.float()).double() - exact).abs().max() <= 1e-4
    again = copy.deepcopy(single)(x.float())
    assert torch.equal(again, single(x.float()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", accepting(2, 4096, heads=(1, 1)))
def test_a_softmax_over_many_keys_is_summed_in_fp32(dtype, impl):
    """4096 equal weights of v = 1: a sum in bfloat16 stops growing at 256, in fp16 at 2048."""
    q = torch.zeros(1, 1, 2, 8, dtype=dtype)
    k, v = torch.ones(1, 1, 4096, 8, dtype=dtype), torch.ones(1, 1, 4096, 8, dtype=dtype)
    assert torch.equal(attend(q, k, v, impl=impl), torch.ones(1, 1, 2, 8, dtype=dtype))
    shares = weights(q, k)
    assert torch.equal(shares, torch.full_like(shares, 1 / 4096))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", accepting(1, 2, heads=(1, 1), pattern=Causal()))
def test_logits_are_not_rounded_to_half(dtype, impl):
    """Logits near 300 that differ by 0.5: bfloat16 steps by 2 there, fp16 by 0.25."""
    q = torch.full((1, 1, 1, 64), 4.0, dtype=dtype)
    k = torch.full((1, 1, 2, 64), 9.0, dtype=dtype)
    k[0, 0, 1, 0] = 10.0
    v = torch.tensor([[[[0.0] * 64, [1.0] * 64]]], dtype=dtype)
    want = oracle(q, k, v, torch.ones(1, 2).bool())
    assert abs(float(want[0, 0, 0, 0]) - 0.6225) < 1e-3
    got = attend(q, k, v, impl=impl, pattern=Causal()).double()
    assert (got - want).abs().max() <= 4e-3
