"""Keys and values are one learned map of x, read by every query head."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Latent
from suffice.memory import Dynamic, Rolling
from suffice.models import LMConfig, native_decoder
from suffice.ops.native import library
from suffice.patterns import Causal
from suffice.testing import assert_close, drawn, normal

from .loops import attention, built, linear, tensor

SPEC = AttentionSpec(d_model=6, num_heads=3, num_kv_heads=1, head_dim=5, encoder=Latent())


def definition(layer, x, memory):
    q, latent = linear(x, layer.q_proj), linear(memory, layer.k_proj)
    latent = [row * 3 for row in latent]  # the loops read a slice for each head
    return attention(layer, q, latent, latent, num_heads=3, head_dim=5)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_self_attention(length):
    layer = built(SPEC)
    x = normal(2, length, 6, seed=length)
    assert_close(layer(x), tensor([definition(layer, r, r) for r in x.tolist()]))


def test_cross_attention():
    layer = built(SPEC)
    x, memory = normal(2, 4, 6, seed=1), normal(2, 7, 6, seed=2)
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    assert_close(layer(x, memory), tensor([definition(layer, r, m) for r, m in pairs]))


def test_there_are_three_maps():
    names = {name.split(".")[0] for name, _ in built(SPEC).named_parameters()}
    assert names == {"q_proj", "k_proj", "o_proj"}


@pytest.mark.parametrize("memory", [Dynamic(), Rolling(9)])
def test_a_state_holds_the_latent_alone(memory):
    layer = built(AttentionSpec.from_json(SPEC.to_json() | {"pattern": Causal().to_json()}))
    x, state = normal(2, 8, 6, seed=3), layer.state(memory)
    with torch.no_grad():
        pieces = [layer(x[:, a:b], state=state) for a, b in ((0, 3), (3, 4), (4, 8))]
        assert_close(torch.cat(pieces, dim=1), layer(x))
    assert len(state.store.append(*[torch.zeros(2, 1, 1, 5).double()]).tensors) == 1
    assert layer.spec.cost(8).state_numbers == 5


def test_native_steps_leave_it_to_torch():
    if not library.available():
        pytest.skip(f"no native kernels: {library.why_not()}")
    sizes = {"vocabulary_size": 7, "length": 8, "d_model": 6, "depth": 1, "mlp_width": 8}
    spec = AttentionSpec.from_json(SPEC.to_json() | {"pattern": Causal().to_json()})
    lm = drawn(LMConfig(**sizes).build(spec), seed=0).eval()
    assert "Latent" in native_decoder.unsupported(lm, Dynamic())
