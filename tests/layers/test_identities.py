"""What the mechanisms are to each other, exactly: with one head, and as torch's own attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import Attention, AttentionSpec, preset
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, bits, drawn, normal, spec_around

D = 6
PATTERNS = [Full(), Causal()]


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


def torch_twin(layer: Attention) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the layer's W_Q and W_O and the identity for W_K and W_V."""
    mha = nn.MultiheadAttention(
        D, layer.spec.num_heads, bias=layer.spec.bias, batch_first=True, dtype=torch.float64
    )
    eye = torch.eye(D, dtype=torch.float64)
    with torch.no_grad():
        mha.in_proj_weight.copy_(torch.cat([layer.q_proj.weight, eye, eye]))
        mha.out_proj.weight.copy_(layer.o_proj.weight)
        if layer.spec.bias:
            zeros = torch.zeros(2 * D, dtype=torch.float64)
            mha.in_proj_bias.copy_(torch.cat([layer.q_proj.bias, zeros]))
            mha.out_proj.bias.copy_(layer.o_proj.bias)
    return mha


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_efficient_is_torch_attention_with_identity_keys_and_values(num_heads, causal, bias):
    layer = layer_of("efficient", num_heads, causal=causal, bias=bias)
    x = normal(2, 7, D, seed=1)
    mask = ~torch.ones(7, 7, dtype=torch.bool).tril() if causal else None
    want, shares = torch_twin(layer)(x, x, x, attn_mask=mask, average_attn_weights=False)
    assert_close(layer(x), want.detach())
    assert_close(layer.weights(x), shares.detach())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_super_is_the_same_fed_with_aligned_values(num_heads, causal, bias):
    layer = layer_of("super_attention", num_heads, causal=causal, bias=bias, length=7)
    x = normal(2, 7, D, seed=1)
    w_a = layer.mixing.weight.detach()[0]
    values = (w_a.tril() if causal else w_a) @ x
    if bias:
        values = values + layer.mixing.bias.detach()[0, :, None]
    mask = ~torch.ones(7, 7, dtype=torch.bool).tril() if causal else None
    want, _ = torch_twin(layer)(x, x, values, attn_mask=mask)
    assert_close(layer(x), want.detach())


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("encoder", ["standard", "optimised", "efficient"])
@pytest.mark.parametrize("per_head", [False, True])
def test_alignment_that_starts_as_identity_starts_as_no_mixing(pattern, encoder, per_head):
    plain = preset(encoder, D, 2)
    still = spec_around(
        pattern,
        plain.encoder,
        Alignment(9, per_head=per_head, init="identity"),
        d_model=D,
    )
    layer = Attention(still, dtype=torch.float64)
    twin = Attention(spec_around(pattern, plain.encoder, d_model=D), dtype=torch.float64)
    assert twin.load_state_dict(layer.state_dict(), strict=False).missing_keys == []
    for length in (1, 6, 9):
        x = normal(2, length, D, seed=1)
        assert_close(layer(x), twin(x))
        valid = bits(2, length, seed=2)
        assert_close(layer(x, valid=valid), twin(x, valid=valid))


def test_alignments_that_start_otherwise_do_not():
    for init in ("glorot", "orthogonal"):
        layer = Attention(
            spec_around(preset("efficient", D, 2).encoder, Alignment(9, init=init), d_model=D)
        )
        assert not torch.equal(layer.mixing.weight[0], torch.eye(9))


def test_one_shared_map_commutes_with_slicing():
    """W_A before or after the cut into heads: the same, so one map per head may hold copies."""
    shared = layer_of("super_attention", 3, length=7)
    each = drawn(
        Attention(
            AttentionSpec(
                d_model=D,
                num_heads=3,
                encoder=shared.spec.encoder,
                mixing=Alignment(7, per_head=True),
            ),
            dtype=torch.float64,
        ),
        seed=1,
    )
    state = shared.state_dict()
    for name in ("mixing.weight", "mixing.bias"):
        state[name] = state[name].repeat(3, *[1] * (state[name].dim() - 1))
    each.load_state_dict(state)
    x = normal(2, 7, D, seed=1)
    assert_close(each(x), shared(x))


@pytest.mark.parametrize("name", ["gqa", "mqa"])
def test_shared_heads_are_standard_with_repeated_keys_and_values(name):
    spec = preset(name, 8, 4)
    layer = drawn(Attention(spec, dtype=torch.float64), seed=2)
    twin = Attention(preset("standard", 8, 4), dtype=torch.float64)
    state = layer.state_dict()
    for key in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        heads = state[key].unflatten(0, (spec.kv_heads, 2))
        state[key] = heads.repeat_interleave(4 // spec.kv_heads, dim=0).flatten(0, 1)
    twin.load_state_dict(state)
    x = normal(2, 7, 8, seed=1)
    assert_close(layer(x), twin(x))
