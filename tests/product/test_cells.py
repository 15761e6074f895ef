"""Each cell of the product: as the reference, forward and backward, and without look-ahead."""

from __future__ import annotations

import json

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.errors import ConfigError
from suffice.testing import assert_close, documents, drawn, normal, padded

from .cells import (
    COMPOSITIONS,
    D_MODEL,
    KV_HEADS,
    LENGTH,
    MIXINGS,
    NUM_HEADS,
    PATTERNS,
    POSITIONS,
    PROJECTIONS,
    REST,
    spelled,
)

X = normal(2, LENGTH, D_MODEL, seed=1)
VALID, SEGMENTS = padded(2, LENGTH, "inside", seed=1), documents(2, LENGTH, seed=2)
DATA = {
    "plain": {},
    "valid": {"valid": VALID},
    "segments": {"segments": SEGMENTS},
    "both": {"valid": VALID, "segments": SEGMENTS},
}


def spec_of(composition, rest) -> AttentionSpec:
    pattern, projections, mixing = composition
    kernel, kv_heads, position, bias = rest
    return AttentionSpec(
        d_model=D_MODEL,
        num_heads=NUM_HEADS,
        num_kv_heads=kv_heads,
        pattern=pattern,
        projections=projections,
        mixing=mixing,
        kernel=kernel,
        position=position,
        bias=bias,
    )


def run(layer: Attention, data) -> list[torch.Tensor]:
    x = X.clone().requires_grad_()
    out = layer(x, **data)
    sources = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out.square().sum(), sources)]


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=spelled)
def test_every_op_equals_the_reference(composition):
    for rest in REST:
        spec = spec_of(composition, rest)
        weights = drawn(Attention(spec, impl="reference", dtype=torch.float64), seed=3)
        layers = []
        for name in ("matmul", "fused", *(["folded"] if rest[1] < NUM_HEADS else [])):
            layers.append(Attention(spec, impl=name, dtype=torch.float64))
            layers[-1].load_state_dict(weights.state_dict())
        for data in DATA.values():
            want = run(weights, data)
            assert torch.isfinite(want[0]).all()
            for layer in layers:
                for a, b in zip(run(layer, data), want, strict=True):
                    assert_close(a, b)


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=spelled)
def test_causal_cells_do_not_look_ahead(composition):
    for rest in REST:
        spec = spec_of(composition, rest)
        layer = drawn(Attention(spec, dtype=torch.float64), seed=3)
        for data in (DATA["plain"], DATA["both"]):
            x = X.clone().requires_grad_()
            out = layer(x, **data)
            real = out[:, 2][data["valid"][:, 2]] if "valid" in data else out[:, 2]
            (slope,) = torch.autograd.grad(real.square().sum(), x)
            assert (slope[:, 2] != 0).any()
            if spec.pattern.causal:
                assert torch.equal(slope[:, 3:], torch.zeros_like(slope[:, 3:]))
            elif not data:
                assert (slope[:, 3:] != 0).any(dim=-1).all()


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=spelled)
def test_each_cell_survives_json(composition):
    for rest in REST:
        spec = spec_of(composition, rest)
        assert AttentionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_product_is_not_empty():
    assert len(PATTERNS) >= 4
    assert len(PROJECTIONS) == 3
    assert len(MIXINGS) >= 4
    assert len(POSITIONS) >= 2
    assert len(COMPOSITIONS) * len(REST) >= 500


@pytest.mark.parametrize("composition", COMPOSITIONS, ids=spelled)
def test_illegal_cells_are_refused_with_a_sentence(composition):
    """An odd head width: legal without Rope, refused with it; slices must fit."""
    pattern, projections, mixing = composition
    for position in POSITIONS:
        for kv_heads in KV_HEADS:
            sizes = {"d_model": 12, "num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 5}
            axes = {
                "pattern": pattern,
                "projections": projections,
                "mixing": mixing,
                "position": position,
            }
            learned = projections.learns_keys and projections.learns_values
            legal = learned or kv_heads * 5 < 12 and kv_heads < 4
            if legal and not position.absolute:
                assert AttentionSpec(**sizes, **axes).head_width == 5
                continue
            with pytest.raises(ConfigError) as refusal:
                AttentionSpec(**sizes, **axes)
            assert ("head_dim=5 is odd" in str(refusal.value)) is position.absolute
            assert ("column slices" in str(refusal.value)) is not legal
