"""An nn.MultiheadAttention and the layer made of it compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice import from_torch, masks
from suffice.errors import ConfigError
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, drawn, normal

D, HEADS = 12, 3


def mha_of(**options) -> nn.MultiheadAttention:
    mha = nn.MultiheadAttention(D, HEADS, dtype=torch.float64, **{"batch_first": True, **options})
    return drawn(mha, seed=3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_self_attention(bias, batch_first, training):
    mha = mha_of(bias=bias, batch_first=batch_first).train(training)
    layer = from_torch(mha)
    x = normal(2, 7, D, seed=1)
    theirs = x if batch_first else x.transpose(0, 1)
    want, shares = mha(theirs, theirs, theirs, average_attn_weights=False)
    assert_close(layer(x), want if batch_first else want.transpose(0, 1))
    assert_close(layer.weights(x), shares)
    assert layer.training is training
    assert sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in mha.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [5, D, 20])
def test_cross_attention_of_another_width(width, bias):
    mha = mha_of(kdim=width, vdim=width, bias=bias)
    layer = from_torch(mha)
    assert layer.spec.widths.d_source == width
    x, memory = normal(2, 4, D, seed=1), normal(2, 9, width, seed=2)
    assert_close(layer(x, memory), mha(x, memory, memory)[0])


def test_gradients():
    mha = mha_of()
    layer = from_torch(mha)
    x, y = (normal(2, 7, D, seed=1).requires_grad_() for _ in range(2))
    layer(x).square().sum().backward()
    mha(y, y, y)[0].square().sum().backward()
    assert_close(x.grad, y.grad)
    maps = (layer.q_proj, layer.k_proj, layer.v_proj)
    assert_close(torch.cat([m.weight.grad for m in maps]), mha.in_proj_weight.grad)
    assert_close(torch.cat([m.bias.grad for m in maps]), mha.in_proj_bias.grad)
    assert_close(layer.o_proj.weight.grad, mha.out_proj.weight.grad)


def test_weights_are_copies():
    mha = mha_of()
    layer = from_torch(mha)
    before = layer(normal(1, 3, D, seed=1))
    drawn(mha, seed=9)
    assert_close(layer(normal(1, 3, D, seed=1)), before, "exact")


def test_masks_turned_over():
    mha, x = mha_of(), normal(2, 7, D, seed=1)
    layer = from_torch(mha)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    hidden = ~bits(2 * HEADS, 7, 7, seed=2) & ~torch.eye(7).bool()
    want = mha(x, x, x, key_padding_mask=padding)[0]
    assert_close(layer(x, valid=masks.from_torch_mha(padding))[~padding], want[~padding])
    want = mha(x, x, x, attn_mask=hidden)[0]
    ours = masks.for_heads(masks.from_torch_mha(hidden), num_heads=HEADS)
    assert_close(layer(x, mask=ours), want)
    want = mha(x, x, x, attn_mask=hidden[0])[0]
    assert_close(layer(x, mask=masks.for_heads(masks.from_torch_mha(hidden[0]))), want)


def test_causality_is_the_pattern():
    mha, x = mha_of(), normal(2, 7, D, seed=1)
    later = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    want = mha(x, x, x, attn_mask=later, is_causal=True)[0]
    layer = from_torch(mha, pattern=Causal())
    assert layer.spec.pattern == Causal()
    assert_close(layer(x), want)
    assert torch.equal(masks.from_additive(later), Causal().mask(7, 7))


def test_dropout_dtype_and_device_are_taken_over():
    layer = from_torch(nn.MultiheadAttention(D, HEADS, dropout=0.25, dtype=torch.bfloat16))
    assert layer.spec.dropout == 0.25
    assert layer.dropout.p == 0.25
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    meta = from_torch(nn.MultiheadAttention(D, HEADS, device="meta"))
    assert {p.device.type for p in meta.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv=True"),
        ({"add_zero_attn": True}, "add_zero_attn=True"),
        ({"kdim": 5, "vdim": 7}, "kdim=5 with vdim=7"),
        ({"kdim": 5}, "kdim=5 with vdim=12"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigError, match=message):
        from_torch(mha_of(**options))


def test_all_reasons_at_once():
    with pytest.raises(ConfigError, match="add_bias_kv=True and add_zero_attn=True"):
        from_torch(mha_of(add_bias_kv=True, add_zero_attn=True))


def test_what_is_no_plain_module_is_refused():
    class Own(nn.MultiheadAttention):
        pass

    for given, name in ((Own(8, 2), "Own"), (nn.Linear(3, 3), "Linear"), ("x", "str")):
        with pytest.raises(ConfigError, match=f"takes an nn.MultiheadAttention, got {name}"):
            from_torch(given)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for given in (layer, nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)):
        with pytest.raises(ConfigError, match=r"from_encoder takes an nn.TransformerEncoder, and"):
            from_torch(given)


def test_a_frozen_module_stays_frozen():
    frozen = from_torch(nn.MultiheadAttention(8, 2).requires_grad_(requires_grad=False))
    assert not any(p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for p in from_torch(nn.MultiheadAttention(8, 2)).parameters())
