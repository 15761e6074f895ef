"""Alignments: sizes, starts, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError, ShapeError
from suffice.mixing import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    NoMixing,
    RowLayout,
    ToeplitzAlignment,
)
from suffice.mixing.alignments import cut
from suffice.testing import assert_close

from .dense import values


def started(mixing, *, causal=False, groups=2):
    return mixing.build(num_kv_heads=groups, causal=causal, device=None, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mixing", "causal", "weight", "bias"),
    [
        (Alignment(9), True, (1, 9, 9), (1, 9)),
        (Alignment(9, per_head=True), False, (2, 9, 9), (2, 9)),
        (Alignment(9, bias=False), False, (1, 9, 9), None),
        (BandedAlignment(9, 3), False, (1, 9, 5), (1, 9)),
        (BandedAlignment(9, 3), True, (1, 9, 3), (1, 9)),
        (BandedAlignment(9, 3, per_head=True), True, (2, 9, 3), (2, 9)),
        (BandedAlignment(9, 3, bias=False), True, (1, 9, 3), None),
        (ToeplitzAlignment(4), False, (1, 7), (1,)),
        (ToeplitzAlignment(4), True, (1, 4), (1,)),
        (ToeplitzAlignment(4, per_head=True), False, (2, 7), (2,)),
        (ToeplitzAlignment(4, bias=False), False, (1, 7), None),
        (BlockAlignment(4), False, (1, 4, 4), (1, 4)),
        (BlockAlignment(4, per_head=True), True, (2, 4, 4), (2, 4)),
        (BlockAlignment(4, bias=False), True, (1, 4, 4), None),
    ],
    ids=repr,
)
def test_shapes(mixing, causal, weight, bias):
    made = started(mixing, causal=causal)
    state = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    assert state == {"weight": weight} | ({} if bias is None else {"bias": bias})
    assert mixing.max_length == (9 if isinstance(mixing, (Alignment, BandedAlignment)) else None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "mixing",
    [
        NoMixing(),
        Alignment(9, init="identity"),
        BandedAlignment(9, 3),
        ToeplitzAlignment(3),
        BlockAlignment(3),
    ],
    ids=repr,
)
def test_an_identity_start_mixes_nothing(mixing, causal):
    v = values(2, 9)
    _, mixed = started(mixing, causal=causal)(v, v, RowLayout())
    assert_close(mixed, v, "exact")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "mixing",
    [
        Alignment(512),
        BandedAlignment(400, 8, init="glorot"),
        ToeplitzAlignment(400, init="glorot"),
        BlockAlignment(64, init="glorot"),
    ],
    ids=repr,
)
def test_a_glorot_start_keeps_the_scale_of_values(mixing, causal):
    """Row t of a causal map has t + 1 terms, scaled so that its output varies as any other."""
    torch.manual_seed(0)
    made = started(mixing, causal=causal)
    weight = made.mask_weight(made.weight)[0]
    assert (weight.square().sum(dim=-1).mean() - 1).abs() < 0.15
    assert (made.bias == 0).all()


def test_heads_start_differently():
    for mixing in (
        Alignment(9, per_head=True),
        BandedAlignment(9, 3, per_head=True, init="glorot"),
        ToeplitzAlignment(3, per_head=True, init="glorot"),
        BlockAlignment(3, per_head=True, init="glorot"),
    ):
        weight = started(mixing).weight
        assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("kind", [Alignment, BlockAlignment])
def test_an_orthogonal_start(kind):
    weight = started(kind(5, init="orthogonal")).weight[0]
    assert_close(weight @ weight.T, torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("before", [0, 1, 5, 33, 100])
@pytest.mark.parametrize("after", [0, 1, 33])
def test_sides_cover_the_sequence_and_reach_their_neighbours_only(before, after):
    for keys in range(140):
        count, side, back, ahead = cut(keys, before, after)
        assert count * side >= keys
        assert count == 1 or ((count - 1) * side < keys and side >= max(back, ahead))
        assert count * side * side <= max(keys, 32) * (keys + 100)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Alignment(0), r"Alignment\(length=0\)"),
        (lambda: Alignment(9, init="eye"), "'eye'"),
        (lambda: BandedAlignment(0, 1), r"BandedAlignment\(length=0"),
        (lambda: BandedAlignment(9, 0), "width=0"),
        (lambda: BandedAlignment(9, 10), "width=10"),
        (lambda: BandedAlignment(9, 2, init="orthogonal"), "'orthogonal'"),
        (lambda: ToeplitzAlignment(0), r"ToeplitzAlignment\(width=0\)"),
        (lambda: ToeplitzAlignment(2, init="zero"), "'zero'"),
        (lambda: BlockAlignment(-3), r"BlockAlignment\(size=-3\)"),
        (lambda: BlockAlignment(2, init="eye"), "'eye'"),
    ],
)
def test_refusals(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize("value", [2.0, "3", None, True])
def test_sizes_that_are_no_whole_numbers(value):
    for make in (Alignment, lambda x: BandedAlignment(x, 1), ToeplitzAlignment, BlockAlignment):
        with pytest.raises(ConfigError, match=f"{value}"):
            make(value)


@pytest.mark.parametrize("mixing", [Alignment(9), BandedAlignment(9, 2)], ids=repr)
def test_too_many_keys(mixing):
    v = values(1, 10)
    with pytest.raises(ShapeError, match=r"10 keys .*suffice.extend\(layer, 10\)"):
        started(mixing)(v, v, RowLayout())
