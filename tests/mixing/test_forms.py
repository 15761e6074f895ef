"""Banded, Toeplitz and block alignments: sizes, starts, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.encoders import Efficient
from suffice.errors import ConfigError, ShapeError
from suffice.mixing import Alignment, BandedAlignment, BlockAlignment, RowLayout, ToeplitzAlignment
from suffice.mixing.alignments import cut
from suffice.patterns import Causal, Window
from suffice.testing import assert_close, drawn, normal

from .dense import built, values


def started(mixing, *, causal=False, groups=2):
    return mixing.build(num_kv_heads=groups, causal=causal, device=None, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mixing", "causal", "weight", "bias"),
    [
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
    assert mixing.max_length == (9 if isinstance(mixing, BandedAlignment) else None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "mixing", [BandedAlignment(9, 3), ToeplitzAlignment(3), BlockAlignment(3)], ids=repr
)
def test_an_identity_start_mixes_nothing(mixing, causal):
    v = values(2, 9)
    _, mixed = started(mixing, causal=causal)(v, v, RowLayout())
    assert_close(mixed, v, "exact")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "mixing",
    [
        BandedAlignment(400, 8, init="glorot"),
        ToeplitzAlignment(400, init="glorot"),
        BlockAlignment(64, init="glorot"),
    ],
    ids=repr,
)
def test_a_glorot_start_keeps_the_scale_of_values(mixing, causal):
    torch.manual_seed(0)
    made = started(mixing, causal=causal)
    weight = made.mask_weight(made.weight)[0]
    assert (weight.square().sum(dim=-1).mean() - 1).abs() < 0.15
    assert (made.bias == 0).all()


def test_heads_start_differently():
    for mixing in (
        BandedAlignment(9, 3, per_head=True, init="glorot"),
        ToeplitzAlignment(3, per_head=True, init="glorot"),
        BlockAlignment(3, per_head=True, init="glorot"),
    ):
        weight = started(mixing).weight
        assert not torch.equal(weight[0], weight[1])


def test_an_orthogonal_block():
    weight = started(BlockAlignment(5, init="orthogonal")).weight[0]
    assert_close(weight @ weight.T, torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 4, 7])
def test_a_block_is_an_alignment_up_to_its_size(length, causal):
    block, whole = built(BlockAlignment(7), causal=causal), built(Alignment(7), causal=causal)
    v = values(2, length)
    assert_close(block(v, v, RowLayout())[1], whole(v, v, RowLayout())[1])


@pytest.mark.parametrize("per_head", [False, True])
def test_a_filter_is_a_convolution(per_head):
    made = built(ToeplitzAlignment(4, per_head=per_head), causal=True)
    v = values(2, 13)
    filters = made.weight.expand(2, -1).repeat_interleave(3, dim=0)[:, None]
    image = torch.nn.functional.pad(v.transpose(2, 3).flatten(1, 2), (3, 0))
    bias = made.bias.expand(2).repeat_interleave(3)
    want = torch.nn.functional.conv1d(image, filters, bias, groups=6)
    assert_close(made(v, v, RowLayout())[1], want.unflatten(1, (2, 3)).transpose(2, 3))


@pytest.mark.parametrize("causal", [False, True])
def test_a_filter_shifts_with_its_input(causal):
    made = built(ToeplitzAlignment(4), causal=causal)
    v = torch.nn.functional.pad(values(1, 6), (0, 0, 8, 8))
    shifted = v.roll(5, dims=2)
    out = made(v, v, RowLayout())[1]
    assert_close(made(shifted, shifted, RowLayout())[1][:, :, 9:], out.roll(5, dims=2)[:, :, 9:])


@pytest.mark.parametrize("w_a", [1, 2, 3])
def test_reach_of_a_window_over_a_band(w_a):
    """A window of 4 keys over a band of w values reads 4 + w - 1 positions."""
    spec = AttentionSpec(
        d_model=6,
        num_heads=2,
        pattern=Window(4) & Causal(),
        encoder=Efficient(),
        mixing=ToeplitzAlignment(w_a),
    )
    layer = drawn(Attention(spec, dtype=torch.float64), seed=1)
    x = normal(1, 12, 6, seed=2).requires_grad_()
    (slope,) = torch.autograd.grad(layer(x)[0, -1].square().sum(), x)
    assert (slope[0].abs().sum(-1) > 0).tolist() == [t > 11 - (4 + w_a - 1) for t in range(12)]


def test_gradients_of_weights_that_nothing_reads_are_zero():
    made = built(BandedAlignment(9, 4), causal=False)
    v = values(2, 6)
    made(v, v, RowLayout())[1].square().sum().backward()
    read = torch.arange(9)[:, None] + torch.arange(-3, 4)
    inside = (read >= 0) & (read < 6)
    inside[6:] = False
    assert torch.equal(made.weight.grad[0] != 0, inside)


@pytest.mark.parametrize("before", [0, 1, 5, 33, 100])
@pytest.mark.parametrize("after", [0, 1, 33])
def test_sides_cover_the_sequence_and_reach_their_neighbours_only(before, after):
    for keys in range(140):
        count, side, back, ahead = cut(keys, before, after)
        assert count * side >= keys
        assert count == 1 or ((count - 1) * side < keys and side >= max(back, ahead))
        assert count * side * side <= max(keys, 32) * (keys + 100)


def test_printed_forms():
    shown = repr(started(ToeplitzAlignment(3, per_head=True), causal=True))
    assert shown == "ToeplitzMap([3], maps=2, bias=True, causal=True)"
    shown = repr(started(BandedAlignment(9, 3, bias=False)))
    assert shown == "BandedMap([9, 5], maps=1, bias=False, causal=False)"


@pytest.mark.parametrize("sizes", [(0, 1), (9, 0), (9, 10), (-1, -1)])
def test_bands(sizes):
    with pytest.raises(ConfigError, match=r"BandedAlignment\(length=.*width=.*from 1 to that len"):
        BandedAlignment(*sizes)


@pytest.mark.parametrize("size", [0, -3])
def test_widths_and_sizes(size):
    with pytest.raises(ConfigError, match=r"ToeplitzAlignment\(width=.*: give the positions it"):
        ToeplitzAlignment(size)
    with pytest.raises(
        ConfigError, match=r"BlockAlignment\(size=.*: give the positions of a block"
    ):
        BlockAlignment(size)


@pytest.mark.parametrize("value", [2.0, "3", None, True])
def test_sizes_that_are_no_whole_numbers(value):
    for make in (lambda x: BandedAlignment(x, 1), ToeplitzAlignment, BlockAlignment):
        with pytest.raises(ConfigError, match="is not a whole number"):
            make(value)


def test_starts():
    with pytest.raises(ConfigError, match="'orthogonal'"):
        BandedAlignment(9, 2, init="orthogonal")
    with pytest.raises(ConfigError, match="'zero'"):
        ToeplitzAlignment(2, init="zero")
    with pytest.raises(ConfigError, match="'eye'"):
        BlockAlignment(2, init="eye")


def test_too_many_keys():
    told = r"10 keys are more than the 9 this BandedAlignment .*suffice.extend\(layer, 10\)"
    v = values(1, 10)
    with pytest.raises(ShapeError, match=told):
        started(BandedAlignment(9, 2))(v, v, RowLayout())
