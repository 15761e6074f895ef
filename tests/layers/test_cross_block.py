"""The block that reads its own text and another one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from suffice import preset
from suffice.errors import ConfigError
from suffice.layers import MLP, Block, CrossBlock, RMSNorm
from suffice.testing import assert_close, documents, drawn, normal, padded

CAUSAL, CROSS = preset("standard", 4, 2, causal=True), preset("efficient", 4, 2)


def block_of(norm, **options) -> CrossBlock:
    block = CrossBlock(CAUSAL, CROSS, MLP(4, 6), norm=norm, eps=0.1, **options)
    return drawn(block.double(), seed=3)


@pytest.mark.parametrize("padding", [False, True])
def test_cross_block(padding):
    x, memory = normal(2, 5, 4, seed=1), normal(2, 7, 4, seed=2)
    valid, real = (padded(2, 5, "right"), padded(2, 7, "left")) if padding else (None, None)

    def norm(block, which, value):
        layer = getattr(block, which)
        return F.layer_norm(value, (4,), layer.weight, layer.bias, 0.1)

    pre = block_of("pre")
    half = x + pre.attention(norm(pre, "attention_norm", x), valid=valid)
    half = half + pre.cross(norm(pre, "cross_norm", half), memory, valid=real)
    want = half + pre.mlp(norm(pre, "mlp_norm", half))
    assert_close(pre(x, memory, source_valid=real, valid=valid), want)
    post = block_of("post")
    half = norm(post, "attention_norm", x + post.attention(x, valid=valid))
    half = norm(post, "cross_norm", half + post.cross(half, memory, valid=real))
    want = norm(post, "mlp_norm", half + post.mlp(half))
    assert_close(post(x, memory, source_valid=real, valid=valid), want)


def test_cross_block_drops_after_each_attention():
    block = CrossBlock(CAUSAL, CROSS, MLP(4, 6), dropout=0.5)
    x, memory = torch.randn(2, 5, 4), torch.randn(2, 7, 4)
    assert block.dropout.p == 0.5
    assert not torch.equal(block(x, memory), block(x, memory))
    assert torch.equal(block.eval()(x, memory), block(x, memory))


def test_cross_block_refuses():
    with pytest.raises(ConfigError, match="unknown norm 'both'.* Legal: post, pre"):
        CrossBlock(CAUSAL, CROSS, MLP(4, 6), norm="both")


def block(**options) -> Block:
    return Block(CAUSAL, MLP(4, 6), **options)


@pytest.mark.parametrize("make", [block, block_of], ids=["self", "cross"])
def test_blocks_of_other_norms(make):
    choices = {"norm": "post", "normalisation": "rms"}
    built = make(**choices)
    norms = [module for name, module in built.named_children() if name.endswith("_norm")]
    assert {type(norm) for norm in norms} == {RMSNorm}
    bare = make(norm="post", bias=False)
    assert not any(name.endswith("_norm.bias") for name in bare.state_dict())
    meta = CrossBlock(CAUSAL, CROSS, MLP(4, 6, device="meta"), device="meta", dtype=torch.half)
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert meta.cross_norm.weight.dtype is meta.cross.q_proj.weight.dtype is torch.half


def test_a_block_of_rms_norms():
    built = drawn(block(normalisation="rms", eps=0.1).double(), seed=1)
    x = normal(2, 5, 4, seed=1)

    def norm(value, layer):
        return F.rms_norm(value, (4,), layer.weight, 0.1)

    half = x + built.attention(norm(x, built.attention_norm))
    assert_close(built(x), half + built.mlp(norm(half, built.mlp_norm)))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_hands_on_what_the_attention_takes(norm):
    built = drawn(block(norm=norm, eps=0.1).double(), seed=1)
    x, segments = normal(2, 5, 4, seed=1), documents(2, 5, seed=4)
    cut = [
        built(x[row : row + 1, segments[row] == n])
        for row in (0, 1)
        for n in segments[row].unique()
    ]
    assert_close(built(x, segments=segments).flatten(0, 1), torch.cat([c[0] for c in cut]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sogments'"):
        built(x, sogments=segments)
