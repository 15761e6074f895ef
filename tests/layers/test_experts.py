"""Mixtures of experts, from the papers' formulas in plain loops."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from suffice import preset
from suffice.errors import ConfigError
from suffice.layers import Experts, MixtureOfExperts
from suffice.models import LMConfig
from suffice.testing import assert_close, drawn, normal

PLAIN = Experts(num_experts=4, top_k=2, width=5)
CASES = {
    "softmax": PLAIN,
    "all-of-them": replace(PLAIN, top_k=4),
    "not-normalised": replace(PLAIN, normalised=False, scale=1.5),
    "clamped": replace(PLAIN, alpha=1.7, limit=0.3, router_bias=True),
    "sigmoid-in-groups": Experts(
        num_experts=9,
        top_k=3,
        width=5,
        scores="sigmoid",
        scale=2.5,
        correction=True,
        groups=3,
        top_groups=2,
        shared_width=4,
    ),
}


def made(experts, *, bias=True):
    layer = drawn(MixtureOfExperts(8, experts, bias=bias).double(), seed=1)
    if layer.correction is not None:
        layer.correction.copy_(0.2 * normal(experts.num_experts, seed=2))
    return layer


def expert(module, x, sizes=None):
    gate, up = module.gate(x), module.up(x)
    if sizes is None or sizes.limit is None:
        return module.down(F.silu(gate) * up)
    gate, up = gate.clamp(max=sizes.limit), up.clamp(-sizes.limit, sizes.limit)
    return module.down(gate * torch.sigmoid(sizes.alpha * gate) * (up + 1))


def chosen_of(ranks, sizes):
    """Return the numbers of the experts that one token reads."""
    per_group = sizes.num_experts // sizes.groups
    groups = [range(g * per_group, (g + 1) * per_group) for g in range(sizes.groups)]
    best = sorted(groups, key=lambda g: -sum(sorted((ranks[e] for e in g), reverse=True)[:2]))
    legal = [e for group in best[: sizes.top_groups] for e in group]
    return sorted(legal, key=lambda e: -ranks[e])[: sizes.top_k]


def by_loops(layer, x):
    sizes, rows = layer.sizes, []
    for token in x.flatten(0, -2):
        logits = layer.router(token)
        scores = logits.softmax(0) if sizes.scores == "softmax" else logits.sigmoid()
        ranks = scores if layer.correction is None else scores + layer.correction
        chosen = chosen_of(ranks.tolist(), sizes)
        total = sum(scores[e] for e in chosen) if sizes.normalised else 1.0
        out = torch.zeros_like(token)
        for e in chosen:
            out = out + sizes.scale * scores[e] / total * expert(layer.experts[e], token, sizes)
        rows.append(out if layer.shared is None else out + expert(layer.shared, token))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_formula(name, bias):
    layer, x = made(CASES[name], bias=bias), normal(2, 7, 8, seed=3).double()
    assert_close(layer(x), by_loops(layer, x), "same_math")


@pytest.mark.parametrize("name", CASES)
def test_a_token_gives_what_it_gives_alone(name):
    layer, x = made(CASES[name]), normal(3, 5, 8, seed=4).double()
    alone = torch.stack([layer(token[None])[0] for token in x.flatten(0, 1)]).view_as(x)
    assert_close(layer(x), alone, "same_math")
    odd = x.clone()
    odd[1, 2] = torch.nan
    rest = torch.ones(3, 5, dtype=torch.bool)
    rest[1, 2] = False
    assert_close(layer(odd)[rest], layer(x)[rest], "same_math")
    assert layer(x[:0]).shape == (0, 5, 8)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    layer, x = made(CASES[name]), normal(1, 3, 8, seed=5).double().requires_grad_()
    want = torch.autograd.grad(by_loops(layer, x).square().sum(), [x, layer.router.weight])
    got = torch.autograd.grad(layer(x).square().sum(), [x, layer.router.weight])
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, "same_math")


def test_only_the_chosen_experts_are_computed():
    layer, x = made(PLAIN), normal(1, 8, seed=6).double()
    _, chosen = layer.route(x)
    for number, module in enumerate(layer.experts):
        if number not in chosen:
            torch.nn.init.constant_(module.down.weight, torch.nan)
    assert layer(x).isfinite().all()


def test_weights_are_computed_in_float32_in_half_models():
    layer = MixtureOfExperts(8, CASES["sigmoid-in-groups"]).to(torch.bfloat16)
    x = normal(2, 3, 8, seed=7).bfloat16()
    assert layer.route(x.flatten(0, 1))[0].dtype == torch.float32
    assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"top_k": 5}, "a token chooses among 4 experts"),
        ({"top_k": 0}, "top_k=0"),
        ({"shared_width": 0}, "shared_width=0"),
        ({"scores": "relu"}, "relu"),
        ({"groups": 3}, "groups=3"),
        ({"groups": 4}, "at least 2 each"),
        ({"top_groups": 2}, "top_groups=2"),
        ({"groups": 2, "top_k": 3}, "among 2 experts"),
        ({"alpha": 1.0}, "give both"),
        ({"alpha": 1.0, "limit": 0.0}, "limit above 0"),
        ({"dense": (-1,)}, "numbers of blocks"),
        ({"width": 2.5}, "width=2.5 is not a whole number"),
    ],
)
def test_experts_refuse(changes, match):
    with pytest.raises(ConfigError, match=match):
        replace(PLAIN, **changes)


SIZES = {"vocabulary_size": 9, "length": 16, "d_model": 8, "depth": 3, "positions": "none"}
MIXED = LMConfig(
    **SIZES,
    mlp_width=6,
    activation="swiglu",
    experts=replace(PLAIN, dense=(0, 2), limit=1.0, alpha=2.0),
)


def test_a_model_has_experts_in_all_blocks_but_the_dense():
    lm = MIXED.build(preset("standard", 8, 2, causal=True))
    kinds = [type(block.mlp).__name__ for block in lm.blocks]
    assert kinds == ["SwiGLU", "MixtureOfExperts", "SwiGLU"]
    stds = [m.weight.detach().std() for n, m in lm.named_modules() if n.endswith("experts.1.down")]
    assert [float(std) < 0.7 * MIXED.start for std in stds] == [True]
    assert LMConfig.from_json(json.loads(json.dumps(MIXED.to_json()))) == MIXED


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"activation": "gelu"}, "activation='gelu': these experts have gates"),
        ({"activation": "geglu"}, "give swiglu"),
        ({"depth": 2}, "depth=2"),
        ({"experts": replace(PLAIN, dense=(0, 1, 2))}, "leaves no block with experts"),
        ({"experts": PLAIN}, "mlp_width=6: no block is dense; give the width of the experts, 5"),
        ({"experts": {"num_experts": 4}}, "experts="),
    ],
)
def test_models_refuse(changes, match):
    with pytest.raises(ConfigError, match=match):
        replace(MIXED, **changes)


def test_padding_and_streaming_change_nothing():
    lm = drawn(MIXED.build(preset("gqa", 8, 2, causal=True, num_kv_heads=1)), seed=3).eval()
    x = torch.arange(12).view(2, 6) % 9
    with torch.no_grad():
        want, state = lm(x), lm.state()
        parts = [lm(part, state=state) for part in x.split([3, 1, 2], dim=1)]
        assert_close(torch.cat(parts, dim=1), want, "same_math")
        padded = torch.cat([torch.full((2, 2), 8), x], dim=1)
        valid = torch.arange(8).expand(2, 8) >= 2
        assert_close(lm(padded, valid=valid)[:, 2:], want, "same_math")
