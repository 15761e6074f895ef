"""Sums of keys and values along the sequence: what is read, rows, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, AttentionSpec
from suffice.errors import ConfigError, ShapeError
from suffice.kernels import Softmax
from suffice.layers.positions import positions
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


def expected(made, k, v, valid=None):
    """E K and F V in loops over rows, heads and the real tokens of a row."""
    values = made.keys if made.values is None else made.values
    keep = torch.ones(len(k), k.shape[2]).bool() if valid is None else valid
    out = []
    for x, weight in ((k, made.keys), (v, values)):
        rows = []
        for row, real in zip(x, keep, strict=True):
            maps = weight.expand(len(row), -1, -1)
            real_ones = row[:, real]
            rows.append(
                torch.stack(
                    [
                        sum(
                            (w[:, s, None] * head[s] for s in range(len(head))),
                            torch.zeros(len(w), head.shape[1]).double(),
                        )
                        for w, head in zip(maps, real_ones, strict=True)
                    ]
                )
            )
        out.append(torch.stack(rows))
    return out


@EACH
@pytest.mark.parametrize("length", range(1, 10))
def test_sums(mixing, length):
    made = built(mixing)
    k, v = (normal(2, 2, length, w, seed=w).requires_grad_() for w in (3, 5))
    got, want = made(k, v, RowLayout()), expected(made, k, v)
    sources = [k, v, *made.parameters()]
    totals = []
    for sums in (got, want):
        total = sums[0].sin().sum() + sums[1].square().sum()
        totals.append(torch.autograd.grad(total, sources))
    for a, b in zip([*got, *totals[0]], [*want, *totals[1]], strict=True):
        assert_close(a, b)
    assert got[0].shape == (2, 2, 4, 3)


@EACH
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_is_left_out(mixing, side):
    made, valid = built(mixing), padded(4, 7, side)
    k, v = normal(4, 2, 7, 3, seed=1), normal(4, 2, 7, 3, seed=2)
    want = expected(made, k, v, valid)
    hidden = ~valid[:, None, :, None]
    rows = RowLayout(valid=valid, positions=positions(valid, None))
    for poison in (0.0, torch.nan, torch.inf):
        got = made(k.masked_fill(hidden, poison), v.masked_fill(hidden, poison), rows)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)


@EACH
def test_a_padded_row_of_a_layer_is_the_row_alone(mixing):
    layer = drawn(Attention(spec_around(mixing), dtype=torch.float64), seed=2)
    x = normal(4, 8, 8, seed=1)
    for side in ("left", "right", "inside"):
        valid = padded(4, 8, side)
        for row, keep, got in zip(x, valid, layer(x, valid=valid), strict=True):
            assert_close(got[keep], layer(row[keep][None])[0])
    nothing = layer(x, valid=torch.zeros(4, 8).bool())
    assert_close(nothing, layer.o_proj(torch.zeros(4, 8, 8).double()), "exact")


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


def test_names_of_the_tensors():
    assert list(built(LowRank(9, 4)).state_dict()) == ["keys"]
    separate = built(LowRank(9, 4, shared=False, per_head=True), groups=3).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in separate.items()}
    assert shapes == {"keys": (3, 4, 9), "values": (3, 4, 9)}
    assert repr(built(LowRank(9, 4))) == "LowRankMap(rank=4, length=9, maps=1, shared=True)"


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


def test_shared_heads():
    spec = AttentionSpec(
        d_model=8, num_heads=4, num_kv_heads=2, mixing=LowRank(9, 3, per_head=True)
    )
    layer = drawn(Attention(spec, dtype=torch.float64), seed=2)
    assert layer.mixing.keys.shape == (2, 3, 9)
    assert layer(normal(2, 9, 8, seed=1)).shape == (2, 9, 8)
