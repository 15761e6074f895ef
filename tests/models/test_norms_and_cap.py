"""Norms after a branch and a cap of the logits, wherever a model runs."""

from __future__ import annotations

import pytest
import torch

from suffice import preset
from suffice.convert.feature_permutation import permuted
from suffice.errors import ConfigError
from suffice.export.architecture import config_of
from suffice.models import LMConfig
from suffice.testing import drawn

SIZES = {"vocabulary_size": 11, "length": 12, "d_model": 16, "depth": 2, "mlp_width": 24}


def built(**fields):
    config = LMConfig(**SIZES, activation="swiglu", norm="rms", positions="none", **fields)
    return drawn(config.build(preset("standard", 16, 2, causal=True)), seed=3).eval()


@torch.no_grad()
@pytest.mark.parametrize("residual", ["out", "parallel"])
def test_residuals_are_those_of_their_formulas(residual):
    lm = built(residual=residual)
    block, x = lm.blocks[0], torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))

    def norm(x, layer):
        return torch.nn.functional.rms_norm(x, (16,), layer.weight, layer.eps)

    if residual == "out":
        wanted = x + norm(block.attention(x), block.attention_out_norm)
        wanted = wanted + norm(block.mlp(wanted), block.mlp_out_norm)
    else:
        attended = block.attention(norm(x, block.attention_norm))
        wanted = x + attended + block.mlp(norm(x, block.mlp_norm))
    assert (block(x) - wanted).abs().max() < 1e-6
    state = lm.state()
    parts = [lm(tokens()[:, a:b], state=state) for a, b in ((0, 4), (4, 5), (5, 9))]
    assert (torch.cat(parts, dim=1) - lm(tokens())).abs().max() < 1e-5


@torch.no_grad()
def test_a_head_has_a_bias():
    plain, biased = built(tied=False), built(tied=False, head_bias=True)
    biased.load_state_dict(plain.state_dict(), strict=False)
    difference = biased(tokens()) - plain(tokens())
    assert (difference - biased.head.bias).abs().max() < 1e-6
    assert biased.head.bias.abs().max() > 1e-2
    with pytest.raises(ConfigError, match="head_bias=True: give tied=False"):
        LMConfig(**SIZES, head_bias=True)


def tokens():
    return torch.arange(18).view(2, 9) % 11


@torch.no_grad()
def test_a_branch_is_normalised_before_it_is_added():
    lm = built(residual="both")
    block, x = lm.blocks[0], torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    wanted = x + block.attention_out_norm(block.attention(block.attention_norm(x)))
    wanted = wanted + block.mlp_out_norm(block.mlp(block.mlp_norm(wanted)))
    assert torch.equal(block(x), wanted)
    assert (built()(tokens()) - lm(tokens())).abs().max() > 1e-2


@torch.no_grad()
def test_logits_stay_below_the_cap():
    plain, capped = built(), built(logit_cap=0.5)
    wanted = 0.5 * torch.tanh(plain(tokens()) / 0.5)
    assert (capped(tokens()) - wanted).abs().max() < 1e-6
    with pytest.raises(ConfigError, match=r"logit_cap=-1.0: give a number above 0"):
        LMConfig(**SIZES, logit_cap=-1.0)


@torch.no_grad()
@pytest.mark.parametrize("residual", ["both", "out", "parallel"])
def test_permuted_features_keep_the_logits(residual):
    lm = built(residual=residual)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    assert (permuted(lm, order)(tokens()) - lm(tokens())).abs().max() < 1e-5


@pytest.mark.parametrize(
    "fields",
    [
        {"residual": "out"},
        {"residual": "parallel"},
        {"logit_cap": 0.5},
        {"head_bias": True, "tied": False},
    ],
    ids=str,
)
def test_what_cannot_hold_them_says_so(fields):
    lm = built(**fields)
    with pytest.raises(ConfigError, match="no class of transformers computes this model"):
        config_of(lm, begin=None, end=None)
