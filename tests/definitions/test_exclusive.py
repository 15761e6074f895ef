"""Exclusive self-attention, arXiv:2603.09078, one token and one head after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.combine import Concat, Exclusive
from suffice.encoders import Efficient, Latent, Standard
from suffice.errors import ConfigError
from suffice.kernels import Elu
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal
from suffice.testing import assert_close, drawn

WIDTH, HEADS, LENGTH = 12, 4, 6


def layer_of(encoder=None, groups=2):
    spec = AttentionSpec(
        d_model=WIDTH,
        num_heads=HEADS,
        num_kv_heads=groups,
        pattern=Causal(),
        encoder=encoder or Standard(),
        combine=Exclusive(),
    )
    return drawn(Attention(spec, dtype=torch.float64), seed=1).eval()


def plain_of(layer):
    plain = Attention(replace(layer.spec, combine=Concat()), dtype=layer.o_proj.weight.dtype)
    plain.load_state_dict(layer.state_dict())
    return plain.eval()


def tokens(batch=1):
    draws = torch.Generator().manual_seed(0)
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64, generator=draws)


@pytest.mark.parametrize(
    ("encoder", "groups"), [(Standard(), 2), (Standard(), 4), (Efficient(), 4), (Latent(), 1)]
)
def test_it_is_the_formula(encoder, groups):
    layer, x = layer_of(encoder, groups), tokens()
    plain = plain_of(layer)
    plain.o_proj.load_state_dict({"weight": torch.eye(WIDTH), "bias": torch.zeros(WIDTH)})
    with torch.no_grad():
        heads, found = plain(x)[0].view(LENGTH, HEADS, -1), layer(x)[0]
        _, v = layer.keys_and_values(x)
        for t in range(LENGTH):
            kept = []
            for head in range(HEADS):
                own = v[0, head * groups // HEADS, t]
                product = sum(float(a) * float(b) for a, b in zip(heads[t, head], own, strict=True))
                square = sum(float(b) ** 2 for b in own)
                kept.append(heads[t, head] - product / square * own)
            assert_close(found[t], layer.o_proj.weight @ torch.cat(kept) + layer.o_proj.bias)
    assert_close(found[0], layer.o_proj.bias)  # a first token attends to itself alone


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_value_of_zeros_takes_nothing_away(dtype):
    layer, x = layer_of(Efficient(), HEADS).to(dtype), tokens().to(dtype)
    x[0, 3] = 0.0
    x.requires_grad_()
    found = layer(x)
    assert_close(found[0, 3], plain_of(layer)(x)[0, 3])
    found.sum().backward()
    assert x.grad.isfinite().all()


def test_no_engine_takes_it_for_a_dense_layer():
    assert preset("xsa", 8, 2, causal=True).lower() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("kernel", Elu()), ("mixing", ToeplitzAlignment(8)), ("shares", 0)],
)
def test_layers_without_a_value_of_each_token_are_refused(field, value):
    sizes = {"d_model": 8, "num_heads": 2, "combine": Exclusive(), "pattern": Causal()}
    with pytest.raises(ConfigError, match=rf"own value, and cannot have {field}="):
        AttentionSpec(**sizes, **{field: value})


def test_another_source_is_refused():
    layer = Attention(preset("xsa", 8, 2))
    with pytest.raises(ConfigError, match="use Concat"):
        layer(torch.zeros(1, 3, 8), torch.zeros(1, 4, 8))
