"""`nn.TransformerEncoder` as blocks of this library."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suffice.convert.sources import from_encoder
from suffice.errors import ConfigError
from suffice.testing import assert_close, drawn


def theirs(norm=None, **options):
    layer = nn.TransformerEncoderLayer(16, 4, 24, **{"batch_first": True, **options})
    made = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
    return drawn(made, seed=1).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "activation": "gelu", "norm": nn.LayerNorm(16, 1e-3)},
        {"bias": False, "layer_norm_eps": 1e-3},
        {"activation": nn.GELU(), "norm": nn.LayerNorm(16, bias=False)},
        {"activation": nn.ReLU(), "dtype": torch.float64},
    ],
    ids=["post", "pre", "no-bias", "module", "double"],
)
def test_it_computes_the_same(options):
    made = theirs(**options)
    ours = from_encoder(made)
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))
    x = x.to(next(made.parameters()).dtype)
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[1, 4:] = False
    with torch.no_grad():
        assert_close(ours(x), made(x))
        wanted = made(x, src_key_padding_mask=~valid)
        assert_close(ours(x, valid)[valid], wanted[valid])
    assert not ours.training


def test_encoders_that_no_block_computes_are_refused():
    with pytest.raises(
        ConfigError, match="from_encoder takes an nn.TransformerEncoder, got Linear"
    ):
        from_encoder(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="the encoder ends in a RMSNorm; give an nn.LayerNorm"):
        from_encoder(theirs(norm=nn.RMSNorm(16)))
    with pytest.raises(
        ConfigError, match="the encoder's activation is .*SiLU.*; relu and gelu are"
    ):
        from_encoder(theirs(activation=nn.SiLU()))
    with pytest.raises(ConfigError, match="the encoder's activation is GELU.approximate='tanh'"):
        from_encoder(theirs(activation=nn.GELU("tanh")))
    odd = theirs()
    odd.layers[1].dropout.p = 0.5
    with pytest.raises(ConfigError, match=r"\[0.1, 0.5\]"):
        from_encoder(odd)
    odd.layers[0] = nn.Identity()
    with pytest.raises(
        ConfigError, match="the encoder holds a Identity; give nn.TransformerEncoder"
    ):
        from_encoder(odd)
