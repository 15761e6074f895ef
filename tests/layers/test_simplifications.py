"""What a layer leaves out or shares where nothing can be told of it, beside every other axis.

Each row of decision 098 that no other test holds: a short way equals the long one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.combine import Differential, Exclusive, Gated
from suffice.encoders import (
    MLA,
    Efficient,
    HeadLayerNorm,
    HeadRMS,
    ProjectionRMS,
    QKVNorm,
    Standard,
)
from suffice.kernels import Delta, Elu, Rfa, Softmax
from suffice.memory import Dynamic, Rolling
from suffice.mixing import BandedAlignment, ToeplitzAlignment
from suffice.patterns import Causal, PerHead, Window
from suffice.positions import Alibi, Position, Rope
from suffice.testing import assert_close, drawn, normal
from tests.kernels.own import Entmax15, ReluSquared, Sigmoid

WIDTH, HEADS, LENGTH = 24, 4, 11
WINDOW = Window(4) & Causal()
BESIDE = (
    {"kernel": Softmax(sink=True, cap=1.5)},
    {"kernel": ReluSquared()},
    {"kernel": Sigmoid()},
    {"kernel": Entmax15(), "pattern": WINDOW},
    {"kernel": Elu(), "mixing": ToeplitzAlignment(3)},
    {"kernel": Rfa(features=32)},
    {"kernel": Delta()},
    {"position": Rope(), "pattern": WINDOW},
    {"position": Alibi(), "kernel": Softmax(sink=True)},
    {"norm": ProjectionRMS()},
    {"norm": HeadLayerNorm(), "position": Rope()},
    {"norm": QKVNorm(), "combine": Exclusive()},
    {"norm": HeadRMS(), "mixing": BandedAlignment(LENGTH, 3, per_head=True)},
    {"combine": Exclusive(), "kernel": Softmax(sink=True)},
    {"combine": Gated(norm=True), "position": Alibi()},
    {"pattern": PerHead((Causal(), WINDOW, WINDOW, Causal())), "kernel": Softmax(cap=1.5)},
)
beside = pytest.mark.parametrize("axes", BESIDE, ids=str)
groups = pytest.mark.parametrize("kv_heads", [1, 2, 4])


def layer_of(**axes):
    spec = AttentionSpec(**{"d_model": WIDTH, "num_heads": HEADS, "pattern": Causal()} | axes)
    return drawn(Attention(spec, dtype=torch.float64), seed=1).eval()


def twin(layer, weights, **changes):
    """Return the layer of a changed spec with weights of its own where the layer has none."""
    other = Attention(replace(layer.spec, **changes), dtype=torch.float64).eval()
    other.load_state_dict(layer.state_dict() | weights(other))
    return other


def in_chunks(layer, x, memory=Dynamic()):  # noqa: B008 - frozen
    state = layer.state(memory)
    return torch.cat([layer(part, state=state) for part in x.split((3, 1, 1, 4, 1, 1), 1)], dim=1)


@torch.no_grad()
@groups
@pytest.mark.parametrize("axes", [*BESIDE, {"combine": Differential(), "norm": HeadRMS()}], ids=str)
def test_keys_and_values_of_one_tensor_are_those_of_maps_that_copy(axes, kv_heads):
    def copies(other):
        shapes = {
            name: p.shape for name, p in other.state_dict().items() if name[:2] in ("k_", "v_")
        }
        return {
            name: torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
            for name, shape in shapes.items()
            if "proj" in name
        }

    layer, x = (
        layer_of(encoder=Efficient(), num_kv_heads=kv_heads, **axes),
        normal(2, LENGTH, WIDTH, seed=2),
    )
    want = twin(layer, copies, encoder=Standard())(x)
    assert_close(layer(x), want)
    assert_close(in_chunks(layer, x), want)


@torch.no_grad()
@beside
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_shared_keys_are_repeated_ones(axes, kv_heads):
    layer, x = layer_of(num_kv_heads=kv_heads, **axes), normal(2, LENGTH, WIDTH, seed=2)

    def repeated(other):
        ours = layer.state_dict()
        return {
            name: ours[name]
            .unflatten(0, (kv_heads, -1))
            .repeat_interleave(HEADS // kv_heads, 0)
            .reshape(p.shape)
            for name, p in other.state_dict().items()
            if p.shape != ours[name].shape
        }

    want = twin(layer, repeated, num_kv_heads=HEADS)(x)
    assert_close(layer(x), want)
    assert_close(in_chunks(layer, x), want)


@torch.no_grad()
@beside
def test_documents_of_a_row_are_texts_of_their_own(axes):
    layer, x = layer_of(num_kv_heads=2, **axes), normal(1, LENGTH, WIDTH, seed=2)
    parts = x.split((1, 6, 4), dim=1)
    segments = torch.tensor([[3] + [0] * 6 + [3] * 4])
    assert_close(layer(x, segments=segments), torch.cat([layer(part) for part in parts], dim=1))


@torch.no_grad()
@pytest.mark.parametrize(
    "kernel", [Softmax(sink=True, cap=1.5), ReluSquared(), Sigmoid(), Entmax15()], ids=repr
)
def test_latents_read_as_they_are_weigh_as_the_keys_made_of_them(kernel):
    layer = layer_of(encoder=MLA(5, 2), kernel=kernel, position=Rope())
    x = normal(2, LENGTH, WIDTH, seed=2)
    assert_close(in_chunks(layer, x), layer(x))


@dataclass(frozen=True)
class ByPlace(Position):
    """Add a number of the key's own position, whatever its distance."""

    biases = True

    def bias(self, num_heads, q_positions, k_positions):
        return (0.7 * k_positions).sin().double() + 0 * q_positions


@torch.no_grad()
@pytest.mark.parametrize("memory", [Rolling(4), Rolling(6, spare=3)], ids=repr)
def test_keys_keep_their_positions_where_the_first_are_dropped(memory):
    layer, x = layer_of(position=ByPlace(), pattern=WINDOW), normal(2, LENGTH, WIDTH, seed=2)
    assert_close(in_chunks(layer, x, memory), layer(x))
