"""What the mechanisms are to each other, exactly: with one head, and as torch's own attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import Attention, preset
from suffice.mixing import Alignment
from suffice.testing import assert_close, drawn, normal, spec_around

D = 6


def layer_of(name, num_heads=1, *, causal=False, bias=True, **options) -> Attention:
    spec = preset(name, D, num_heads, causal=causal, bias=bias, **options)
    return drawn(Attention(spec, dtype=torch.float64), seed=4)


def matrix(layer: nn.Linear) -> torch.Tensor:
    """The W of x W, as the papers write it."""
    return layer.weight.detach().T


def fill(target: nn.Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    with torch.no_grad():
        target.weight.copy_(weight.T)
        if bias is not None:
            target.bias.copy_(bias)


def without_value_map(standard: Attention) -> Attention:
    """W_O <- W_V W_O, b_O <- b_V W_O + b_O: one head loses nothing without W_V."""
    biased = standard.spec.bias
    folded = layer_of("optimised", causal=standard.spec.pattern.causal, bias=biased)
    folded.q_proj.load_state_dict(standard.q_proj.state_dict())
    folded.k_proj.load_state_dict(standard.k_proj.state_dict())
    w_o = matrix(standard.o_proj)
    b_o = standard.v_proj.bias @ w_o + standard.o_proj.bias if biased else None
    fill(folded.o_proj, matrix(standard.v_proj) @ w_o, b_o)
    return folded


def without_key_map(optimised: Attention) -> Attention:
    """W_Q <- W_Q W_K^T, b_Q <- b_Q W_K^T: one head loses nothing without W_K; b_K cancels."""
    biased = optimised.spec.bias
    folded = layer_of("efficient", causal=optimised.spec.pattern.causal, bias=biased)
    folded.o_proj.load_state_dict(optimised.o_proj.state_dict())
    w_k = matrix(optimised.k_proj)
    b_q = optimised.q_proj.bias @ w_k.T if biased else None
    fill(folded.q_proj, matrix(optimised.q_proj) @ w_k.T, b_q)
    return folded


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_one_head_folds_without_loss(length, causal, bias):
    standard = layer_of("standard", causal=causal, bias=bias)
    optimised = without_value_map(standard)
    efficient = without_key_map(optimised)
    x = normal(2, length, D, seed=1)
    want = standard(x)
    assert_close(optimised(x), want)
    assert_close(efficient(x), want)
    assert_close(efficient.weights(x), standard.weights(x))


def test_two_heads_do_not_fold():
    """Column slices see a part of x each; the same folding of two heads is another layer."""
    standard = layer_of("standard", num_heads=2)
    optimised = layer_of("optimised", num_heads=2)
    folded = without_value_map(standard)
    optimised.load_state_dict(folded.state_dict())
    x = normal(2, 5, D, seed=1)
    assert (optimised(x) - standard(x)).abs().max() > 0.01


def test_alignments_that_start_otherwise_do_not():
    for init in ("glorot", "orthogonal"):
        layer = Attention(
            spec_around(preset("efficient", D, 2).encoder, Alignment(9, init=init), d_model=D)
        )
        assert not torch.equal(layer.mixing.weight[0], torch.eye(9))
