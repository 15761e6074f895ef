"""Sums of keys and values along the sequence: what is read, rows, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention
from suffice.errors import ConfigError, ShapeError
from suffice.kernels import Softmax
from suffice.mixing import LowRank, Mixing, RowLayout
from suffice.ops import register_flops
from suffice.patterns import Causal, Full
from suffice.positions import Alibi, NoPosition, Rope
from suffice.testing import assert_close, documents, drawn, normal, padded, spec_around

FORMS = [
    LowRank(9, 4, shared=shared, per_head=per_head)
    for shared in (True, False)
    for per_head in (True, False)
]
EACH = pytest.mark.parametrize("mixing", FORMS, ids=repr)


def built(mixing, groups=2):
    made = mixing.build(num_kv_heads=groups, causal=False, device=None, dtype=torch.float64)
    return drawn(made, seed=1)


@EACH
def test_memory_of_another_length(mixing):
    layer = drawn(Attention(spec_around(mixing), dtype=torch.float64), seed=2)
    x, memory = normal(2, 5, 8, seed=1), normal(2, 9, 8, seed=2)
    valid = padded(2, 9, "left")
    out = layer(x, memory, valid=valid)
    for row in range(2):
        alone = layer(x[row : row + 1], memory[row, valid[row]][None])
        assert_close(out[row : row + 1], alone)


@EACH
def test_cost(mixing):
    made = built(mixing)
    assert mixing.parameters(2) == sum(p.numel() for p in made.parameters())
    for length in (1, 4, 9):
        x = normal(3, 2, length, 5, seed=1)
        register_flops()
        with FlopCounterMode(display=False) as counter:
            made(x, x, RowLayout())
        assert counter.get_total_flops() == 3 * mixing.flops(length, 10)
        assert mixing.reads(length) == 4
    assert mixing.max_length == 9
    assert Mixing.from_json(json.loads(json.dumps(mixing.to_json()))) == mixing


def test_a_start_keeps_the_scale():
    torch.manual_seed(0)
    made = LowRank(400, 100, shared=False).build(
        num_kv_heads=1, causal=False, device=None, dtype=None
    )
    for weight in (made.keys, made.values):
        bound = (6 / 500) ** 0.5
        assert 0.98 * bound < weight.abs().max().item() <= bound
    assert not torch.equal(made.keys, made.values)


def test_rope_turns_keys_before_they_are_summed():
    spec = spec_around(LowRank(9, 4), Rope())
    layer = drawn(Attention(spec, dtype=torch.float64), seed=2)
    x = normal(1, 6, 8, seed=1)
    q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in layer_maps(layer))
    at = torch.arange(6)
    k, v = layer.mixing(Rope().rotate(k, at), v, RowLayout())
    weights = (Rope().rotate(q, at) @ k.mT / 2).softmax(dim=-1)
    assert_close(layer(x), layer.o_proj((weights @ v).transpose(1, 2).flatten(2)))


def layer_maps(layer):
    return layer.q_proj, layer.k_proj, layer.v_proj


@pytest.mark.parametrize("sizes", [(0, 1), (9, 0), (9, 10)])
def test_ranks(sizes):
    with pytest.raises(ConfigError, match=r"LowRank\(length=.*rank=.*a rank from 1 to that length"):
        LowRank(*sizes)


def test_longer_input_is_refused_with_the_way_out():
    x = normal(1, 2, 10, 3, seed=1)
    told = r"10 keys are more than the 9 this LowRank .*suffice.interpolate\(layer, 10\)"
    with pytest.raises(ShapeError, match=told):
        built(LowRank(9, 4))(x, x, RowLayout())


@pytest.mark.parametrize("pattern", [Causal(), Full() & Causal()], ids=repr)
def test_patterns(pattern):
    told = r"LowRank sums keys of all positions, so pattern=.*has no keys to choose from; use Full"
    with pytest.raises(ConfigError, match=told):
        spec_around(LowRank(9, 4), pattern)


def test_positions_that_weigh_keys():
    told = r"position=Alibi\(\) weighs keys by where they stand, and LowRank sums keys"
    with pytest.raises(ConfigError, match=told):
        spec_around(LowRank(9, 4), Alibi())
    assert spec_around(LowRank(9, 4), NoPosition(), Softmax()).mixing == LowRank(9, 4)


def test_documents_and_masks_are_refused():
    layer = Attention(spec_around(LowRank(9, 4)))
    x = normal(2, 5, 8, seed=1, dtype=torch.float32)
    with pytest.raises(ConfigError, match="LowRank sums the keys of a whole row, so documents"):
        layer(x, segments=documents(2, 5))
    with pytest.raises(ConfigError, match="LowRank mixes values before any mask applies"):
        layer(x, mask=torch.ones(1, 1, 5, 5).bool())
