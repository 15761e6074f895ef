"""QK-norm: q' = g_q q / sqrt(mean(q^2) + eps) of each head, before it turns; k' likewise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.encoders import (
    Efficient,
    HeadLayerNorm,
    HeadRMS,
    Latent,
    NoNorm,
    ProjectionRMS,
    QKVNorm,
)
from suffice.errors import ConfigError
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import assert_close, normal

from .loops import attention, built, columns, everything, joined, linear, tensor, up_to_self
from .rotations import plain, spun

SPEC = AttentionSpec(d_model=8, num_heads=4, head_dim=6, norm=HeadRMS(0.3))


def divided(rows, heads, gains, eps):
    """The rows with each head divided by its root mean square, times the gains."""
    width, out = len(rows[0]) // heads, []
    for head in range(heads):
        part = []
        for x in columns(rows, head, width):
            size = math.sqrt(math.fsum(n * n for n in x) / width + eps)
            part.append([g * n / size for g, n in zip(gains, x, strict=True)])
        out.append(part)
    return joined(out)


def definition(layer, x, memory=None, *, see=everything):
    spec, memory = layer.spec, x if memory is None else memory
    q, k, v = linear(x, layer.q_proj), memory, memory
    if spec.encoder.learns_keys:
        k, v = linear(memory, layer.k_proj), linear(memory, layer.v_proj)
    eps = spec.norm.eps
    q = divided(q, spec.num_heads, layer.q_norm.weight.tolist(), eps)
    k = divided(k, spec.kv_heads, layer.k_norm.weight.tolist(), eps)
    if spec.position.rotates:
        turn = (spec.position.layout, plain(spec.position.theta, spec.head_width))
        q, k = spun(q, spec.num_heads, *turn), spun(k, spec.kv_heads, *turn)
    sizes = {"num_heads": spec.num_heads, "num_kv_heads": spec.kv_heads}
    return attention(layer, q, k, v, head_dim=spec.head_width, see=see, **sizes)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("position", [{}, {"position": Rope()}], ids=["still", "turning"])
def test_self_attention(length, kv_heads, position):
    layer = built(replace(SPEC, num_kv_heads=kv_heads, pattern=Causal(), **position))
    x = normal(2, length, 8, seed=length)
    want = [definition(layer, row, see=up_to_self) for row in x.tolist()]
    assert_close(layer(x), tensor(want))


def test_cross_attention():
    layer = built(replace(SPEC, num_kv_heads=2))
    x, memory = normal(2, 4, 8, seed=1), normal(2, 7, 8, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    assert_close(layer(x, memory), tensor([definition(layer, r, m) for r, m in pairs]))


def test_keys_that_are_columns_are_divided_and_values_are_not():
    layer = built(replace(SPEC, head_dim=2, encoder=Efficient()))
    x = normal(2, 5, 8, seed=3)
    assert_close(layer(x), tensor([definition(layer, row) for row in x.tolist()]))


def test_what_is_learned_and_what_it_costs():
    layer, without = Attention(SPEC), replace(SPEC, norm=NoNorm())
    assert [n for n, _ in layer.named_parameters() if "norm" in n] == [
        "q_norm.weight",
        "k_norm.weight",
    ]
    assert torch.equal(layer.q_norm.weight, torch.ones(6))
    ours, plain_cost = SPEC.cost(9), without.cost(9)
    assert ours == replace(plain_cost, parameters=plain_cost.parameters + 12)
    assert HeadRMS().parameters(4, 6) == 6
    assert NoNorm().parameters(4, 6) == 0


def test_without_a_norm_nothing_is_there():
    layer = Attention(replace(SPEC, norm=NoNorm()))
    assert not any("norm" in name for name in layer.state_dict())
    x = torch.ones(1)
    assert layer.q_norm(x) is x


@pytest.mark.parametrize(
    "encoder", [{"encoder": Efficient(), "head_dim": None}, {"encoder": Latent()}]
)
def test_keys_are_kept_beside_the_values_that_they_were(encoder):
    fields = {"pattern": Causal(), "num_kv_heads": 1} | encoder
    if "head_dim" in fields:
        fields["num_kv_heads"] = 4
    with_norm, without = replace(SPEC, **fields), replace(SPEC, **fields, norm=NoNorm())
    assert without.one_tensor
    assert not with_norm.one_tensor
    assert with_norm.cost(9).state_numbers == 2 * without.cost(9).state_numbers
    assert len(built(with_norm).state().store.append(*keys_and_values(with_norm)).tensors) == 2


def keys_and_values(spec):
    return [torch.zeros(1, spec.kv_heads, 1, spec.head_width).double()] * 2


def test_products_stay_small_whatever_the_maps_grow_to():
    layer = built(replace(SPEC, norm=HeadRMS()))
    x = normal(2, 6, 8, seed=4)
    want = layer(x)
    with torch.no_grad():
        layer.q_proj.weight *= 1e3
        layer.q_proj.bias *= 1e3
    assert (layer(x) - want).abs().max() < 1e-4


def test_the_preset():
    spec = preset("qk_norm", 12, 4, num_kv_heads=2, eps=0.5, causal=True)
    plain_spec = preset("gqa", 12, 4, num_kv_heads=2, causal=True)
    assert spec == replace(plain_spec, norm=HeadRMS(0.5))
    assert preset("qk_norm", 12, 4).norm == HeadRMS(1e-6)


def test_json_names_it_and_may_leave_it_out():
    data = SPEC.to_json()
    assert data["norm"] == {"name": "HeadRMS", "eps": 0.3}
    assert AttentionSpec.from_json(data) == SPEC
    del data["norm"]
    assert AttentionSpec.from_json(data) == replace(SPEC, norm=NoNorm())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadRMS(0.0), r"HeadRMS\(eps=0.0\): give a number above 0, such as 1e-6"),
        (lambda: HeadRMS(float("nan")), "eps=nan is not a finite number"),
        (lambda: replace(SPEC, norm=Rope()), r"norm=Rope.* is a position, not a norm; legal: Head"),
    ],
)
def test_what_it_cannot_be(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(("encoder", "kv_heads"), [(None, 1), (None, 4), (Latent(), 2)])
def test_values_are_divided_without_gains(encoder, kv_heads):
    fields = {"num_kv_heads": kv_heads, "pattern": Causal(), "position": Rope()}
    spec = replace(SPEC, norm=QKVNorm(0.3), **fields)
    spec = spec if encoder is None else replace(spec, encoder=encoder)
    layer = built(spec)
    x = normal(2, 5, 8, seed=3)
    want = []
    for row in x.tolist():
        q, k = (linear(row, getattr(layer, f"{name}_proj")) for name in "qk")
        v = k if encoder is not None else linear(row, layer.v_proj)
        v = divided(v, kv_heads, [1.0] * 6, 0.3)
        q = divided(q, 4, layer.q_norm.weight.tolist(), 0.3)
        k = divided(k, kv_heads, layer.k_norm.weight.tolist(), 0.3)
        turn = ("half", plain(10_000.0, 6))
        q, k = spun(q, 4, *turn), spun(k, kv_heads, *turn)
        sizes = {"num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 6}
        want.append(attention(layer, q, k, v, see=up_to_self, **sizes))
    assert_close(layer(x), tensor(want))
    assert spec.cost(9).parameters == replace(spec, norm=HeadRMS(0.3)).cost(9).parameters
    assert spec.lower() is None
    state = layer.state()
    parts = [layer(x[:, a:b], state=state) for a, b in ((0, 2), (2, 5))]
    assert_close(torch.cat(parts, dim=1), layer(x))
    with pytest.raises(ConfigError, match=r"QKVNorm\(eps=0.0\): give a number above 0"):
        QKVNorm(0.0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_projection_is_divided_as_a_whole(kv_heads):
    norm = ProjectionRMS(0.3)
    spec = replace(SPEC, norm=norm, num_kv_heads=kv_heads, pattern=Causal(), position=Rope())
    layer = built(spec)
    x = normal(2, 5, 8, seed=3)
    want = []
    for row in x.tolist():
        q, k, v = (linear(row, getattr(layer, f"{name}_proj")) for name in "qkv")
        q = divided(q, 1, layer.q_norm.norm.weight.tolist(), 0.3)
        k = divided(k, 1, layer.k_norm.norm.weight.tolist(), 0.3)
        turn = ("half", plain(10_000.0, 6))
        q, k = spun(q, 4, *turn), spun(k, kv_heads, *turn)
        sizes = {"num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 6}
        want.append(attention(layer, q, k, v, see=up_to_self, **sizes))
    assert_close(layer(x), tensor(want))
    plain_cost = replace(spec, norm=NoNorm()).cost(9)
    assert spec.cost(9).parameters == plain_cost.parameters + (4 + kv_heads) * 6
    assert spec.lower().qk_norm == norm
    with pytest.raises(ConfigError, match=r"ProjectionRMS\(eps=0.0\): give a number above 0"):
        ProjectionRMS(0.0)


def normalised(rows, gains, eps):
    """The rows with each head less its mean, divided by its deviation, times its gains."""
    heads, width, out = len(gains), len(gains[0]), []
    for head in range(heads):
        part = []
        for x in columns(rows, head, width):
            mean = math.fsum(x) / width
            size = math.sqrt(math.fsum((n - mean) ** 2 for n in x) / width + eps)
            part.append([g * (n - mean) / size for g, n in zip(gains[head], x, strict=True)])
        out.append(part)
    return joined(out)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_head_has_a_layer_norm_with_its_own_gains(kv_heads):
    norm = HeadLayerNorm(0.3)
    spec = replace(SPEC, norm=norm, num_kv_heads=kv_heads, pattern=Causal(), position=Rope())
    layer = built(spec)
    x = normal(2, 5, 8, seed=3)
    want = []
    for row in x.tolist():
        q, k, v = (linear(row, getattr(layer, f"{name}_proj")) for name in "qkv")
        q = normalised(q, layer.q_norm.weight.tolist(), 0.3)
        k = normalised(k, layer.k_norm.weight.tolist(), 0.3)
        turn = ("half", plain(10_000.0, 6))
        q, k = spun(q, 4, *turn), spun(k, kv_heads, *turn)
        sizes = {"num_heads": 4, "num_kv_heads": kv_heads, "head_dim": 6}
        want.append(attention(layer, q, k, v, see=up_to_self, **sizes))
    assert_close(layer(x), tensor(want))
    assert torch.equal(Attention(spec).q_norm.weight, torch.ones(4, 6))
    assert spec.cost(9).parameters - replace(spec, norm=NoNorm()).cost(9).parameters == (
        (4 + kv_heads) * 6
    )
    assert spec.lower().qk_norm == norm
    with pytest.raises(ConfigError, match=r"HeadLayerNorm\(eps=0.0\): give a number above 0"):
        HeadLayerNorm(0.0)
