"""Layers with a longer mixing, and trained maps at another resolution."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, AttentionSpec, extend, interpolate, preset
from suffice.encoders import Efficient
from suffice.errors import ConfigError
from suffice.layers.resize import _line
from suffice.mixing import (
    Alignment,
    BandedAlignment,
    LowRank,
    NoMixing,
    RowLayout,
    ToeplitzAlignment,
)
from suffice.patterns import Causal
from suffice.testing import assert_close, drawn, normal, padded, spec_around

D = 6


def layer_of(*, causal=False, per_head=False, bias=True) -> Attention:
    base = preset("efficient", D, 2, causal=causal)
    spec = AttentionSpec(
        d_model=D,
        num_heads=2,
        pattern=base.pattern,
        encoder=Efficient(),
        mixing=Alignment(5, per_head=per_head, bias=bias),
    )
    return drawn(Attention(spec, dtype=torch.float64), seed=3)


SHAPES = [
    {"causal": causal, "per_head": per_head, "bias": bias}
    for causal in (False, True)
    for per_head in (False, True)
    for bias in (False, True)
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [5, 6, 9])
def test_old_lengths_are_unchanged(shape, length):
    layer = layer_of(**shape)
    longer = extend(layer, length)
    for short in range(1, 6):
        x = normal(2, short, D, seed=short)
        assert_close(longer(x), layer(x), "exact")
        valid = padded(2, short, "left")
        assert_close(longer(x, valid=valid), layer(x, valid=valid), "exact")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_new_positions_are_the_identity(shape):
    layer = layer_of(**shape)
    longer = extend(layer, 8)
    maps = len(layer.mixing.weight)
    want = torch.eye(8, dtype=torch.float64).repeat(maps, 1, 1)
    want[:, :5, :5] = layer.mixing.weight.detach()
    assert torch.equal(longer.mixing.weight, want)
    if shape["bias"]:
        assert torch.equal(longer.mixing.bias[:, :5], layer.mixing.bias)
        assert torch.equal(longer.mixing.bias[:, 5:], torch.zeros(maps, 3).double())
    else:
        assert longer.mixing.bias is None


def test_the_old_layer_keeps_its_own_weights():
    layer = layer_of()
    x = normal(2, 5, D, seed=1)
    before = layer(x)
    drawn(extend(layer, 8), seed=9)
    assert_close(layer(x), before, "exact")
    assert layer.spec.mixing.length == 5


def test_what_was_frozen_stays_frozen():
    layer = layer_of().requires_grad_(requires_grad=False)
    assert not any(p.requires_grad for p in extend(layer, 8).parameters())


def test_mode_dtype_and_impl_do_not_change():
    layer = Attention(preset("super_attention", D, 2, length=5), impl="matmul").half().eval()
    longer = extend(layer, 8)
    assert not longer.training
    assert longer.impl == "matmul"
    assert {p.dtype for p in longer.parameters()} == {torch.float16}


OTHERS = [
    BandedAlignment(5, 1),
    BandedAlignment(5, 3, init="glorot"),
    BandedAlignment(5, 5, per_head=True, bias=False),
    LowRank(5, 2),
    LowRank(5, 3, shared=False, per_head=True),
]


def extendable(mixing, causal=False) -> Attention:
    axes = [mixing, *([Causal()] if causal else [])]
    return drawn(Attention(spec_around(*axes), dtype=torch.float64), seed=3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixing", OTHERS, ids=repr)
def test_old_lengths_of_other_mixings(mixing, causal):
    if causal and isinstance(mixing, LowRank):
        return
    layer = extendable(mixing, causal)
    for length in (5, 6, 12):
        longer = extend(layer, length)
        assert longer.spec.mixing.length == length
        assert longer.spec.cost(5).parameters == sum(p.numel() for p in longer.parameters())
        for short in range(1, 6):
            x = normal(2, short, 8, seed=short)
            valid = padded(2, short, "left")
            assert_close(longer(x), layer(x), "exact")
            assert_close(longer(x, valid=valid), layer(x, valid=valid), "exact")
        assert longer(normal(2, length, 8, seed=1)).shape == (2, length, 8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixing", OTHERS[:3], ids=repr)
def test_new_positions_of_a_band_are_the_identity(mixing, causal):
    """And old ones read no new one, though their band reaches there."""
    layer = extendable(mixing, causal)
    longer = extend(layer, 9)
    v = normal(2, 2, 9, 4, seed=1)
    _, mixed = longer.mixing(v, v, RowLayout())
    _, before = layer.mixing(v[:, :, :5], v[:, :, :5], RowLayout())
    assert_close(mixed[:, :, :5], before)
    assert_close(mixed[:, :, 5:], v[:, :, 5:])


def test_new_positions_enter_no_sum():
    layer = extendable(LowRank(5, 2, shared=False))
    longer, x = extend(layer, 8), normal(2, 2, 8, 4, seed=1)
    for got, want in zip(
        longer.mixing(x, x, RowLayout()),
        layer.mixing(x[:, :, :5], x[:, :, :5], RowLayout()),
        strict=True,
    ):
        assert_close(got, want)
    assert torch.equal(longer.mixing.keys[..., 5:], torch.zeros(1, 2, 3).double())


def test_refusals():
    pattern = (
        r"extend lengthens an Alignment, .* this layer has NoMixing\(\), which takes any length"
    )
    with pytest.raises(ConfigError, match=pattern):
        extend(Attention(preset("efficient", D, 2)), 9)
    with pytest.raises(ConfigError, match="this layer has ToeplitzAlignment.*takes any length"):
        extend(Attention(spec_around(ToeplitzAlignment(3))), 9)
    with pytest.raises(ConfigError, match="extend to length=4 would cut the Alignment of length 5"):
        extend(layer_of(), 4)


MODES = pytest.mark.parametrize("mode", ["linear", "cubic"])
FORMS = [
    Alignment(9),
    Alignment(9, per_head=True, bias=False),
    LowRank(9, 4),
    LowRank(9, 2, shared=False, per_head=True),
]
EACH = pytest.mark.parametrize("mixing", FORMS, ids=repr)


def built(mixing, *axes) -> Attention:
    spec = spec_around(mixing, Efficient(), *axes, num_heads=2)
    return drawn(Attention(spec, dtype=torch.float64), seed=3)


@EACH
@MODES
@pytest.mark.parametrize("grid", [None, (3, 3), (1, 9), (2, 4)])
def test_the_same_length_is_the_same_layer(mixing, mode, grid):
    layer = built(mixing)
    same = interpolate(layer, 9, mode=mode, grid=grid)
    assert same.spec == layer.spec
    for name, tensor in layer.state_dict().items():
        assert_close(same.state_dict()[name], tensor)
    drawn(same, seed=7)
    assert not torch.equal(next(same.mixing.parameters()), next(layer.mixing.parameters()))


@EACH
@MODES
@pytest.mark.parametrize(("length", "grid"), [(4, None), (5, None), (31, None), (36, (3, 3))])
def test_sums_over_a_row_do_not_change(mixing, mode, length, grid):
    """Of the interpolated rows; the same for all positions if they were."""
    layer = built(mixing)
    with torch.no_grad():
        for p in layer.mixing.parameters():
            p.div_(p.sum(dim=-1, keepdim=True))
    other = interpolate(layer, length, grid=grid, mode=mode)
    assert other.spec.max_length == length
    assert other.spec.cost(1).parameters == sum(p.numel() for p in other.parameters())
    for name, p in other.mixing.named_parameters():
        if name == "bias":
            continue
        assert_close(p.sum(dim=-1), torch.ones(p.shape[:-1]).double())
    assert other(normal(2, length, 8, seed=1)).shape == (2, length, 8)


@pytest.mark.parametrize("new", [1, 2, 3, 6, 12, 50])
@pytest.mark.parametrize("old", [1, 2, 3, 12])
@MODES
def test_a_line_of_samples(old, new, mode):
    """Rows sum to 1, each old sample counts; a straight line stays one away from the ends."""
    line = _line(old, new, mode)
    assert line.shape == (new, old)
    assert_close(line.sum(dim=1), torch.ones(new).double())
    assert (line.sum(dim=0) > 0.1 * new / old).all()
    centres = (torch.arange(new).double() + 0.5) * old / new - 0.5
    inside = (centres > 2) & (centres < old - 3) if new >= old else centres < -1
    assert_close(
        torch.cat([(line @ torch.arange(old).double())[inside], torch.zeros(1).double()]),
        torch.cat([centres[inside], torch.zeros(1).double()]),
    )


def test_a_line_of_double_resolution():
    want = [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]
    assert_close(_line(2, 4, "linear"), torch.tensor(want).double())


def test_a_smooth_map_is_sampled_again():
    """W_A[t, s] = f(t/l) g(s/l) / l: twice the positions, half of each weight."""
    layer = built(Alignment(32, bias=True))
    at = (torch.arange(32).double() + 0.5) / 32
    fine = (torch.arange(64).double() + 0.5) / 64
    with torch.no_grad():
        layer.mixing.weight[0] = torch.outer(1 + at, 2 - at) / 32
        layer.mixing.bias[0] = at
    other = interpolate(layer, 64).mixing
    inner = slice(2, -2)  # beyond the outer samples the ends repeat
    want = torch.outer(1 + fine, 2 - fine) / 64
    assert_close(other.weight[0][inner, inner], want[inner, inner])
    assert_close(other.bias[0][inner], fine[inner])


@MODES
@pytest.mark.parametrize(("old", "new"), [((2, 3), (4, 6)), ((4, 6), (2, 3)), ((3, 3), (5, 5))])
@pytest.mark.parametrize("token", [0, 1])
def test_grids_are_interpolated_in_both_directions(old, new, token, mode):
    size, wanted = old[0] * old[1] + token, new[0] * new[1] + token
    layer = built(Alignment(size))
    other = interpolate(layer, wanted, grid=old, mode=mode).mixing
    rows, columns = _line(old[0], new[0], mode), _line(old[1], new[1], mode)
    down_rows, down_columns = (u / u.sum(dim=0) for u in (rows, columns))
    weight = layer.mixing.weight[0].detach()
    patches = weight[token:, token:].unflatten(1, old).unflatten(0, old)
    want = torch.einsum("ai,bj,ijkl,ck,dl->abcd", rows, columns, patches, down_rows, down_columns)
    assert_close(other.weight[0, token:, token:], want.flatten(2).flatten(0, 1))
    bias = torch.einsum("ai,bj,ij->ab", rows, columns, layer.mixing.bias[0, token:].view(old))
    assert_close(other.bias[0, token:], bias.flatten())
    if token:
        assert_close(other.weight[0, 0, 0], weight[0, 0])
        assert_close(other.bias[0, 0], layer.mixing.bias[0, 0])
        resampled = torch.einsum("ck,dl,kl->cd", down_rows, down_columns, weight[0, 1:].view(old))
        assert_close(other.weight[0, 0, 1:], resampled.flatten())
        read = torch.einsum("ai,bj,ij->ab", rows, columns, weight[1:, 0].view(old))
        assert_close(other.weight[0, 1:, 0], read.flatten())


def test_other_settings_do_not_change():
    layer = Attention(preset("super_attention", 8, 2, length=5), impl="matmul").half().eval()
    layer.mixing.weight.requires_grad_(requires_grad=False)
    other = interpolate(layer, 9)
    assert (other.training, other.impl) == (False, "matmul")
    assert {p.dtype for p in other.parameters()} == {torch.float16}
    assert not other.mixing.weight.requires_grad
    assert other.mixing.bias.requires_grad
    before = layer.mixing.weight.clone()
    drawn(other, seed=1)
    assert torch.equal(layer.mixing.weight, before)


@pytest.mark.parametrize("mixing", [NoMixing(), BandedAlignment(9, 2)], ids=repr)
def test_mixings_without_a_map_to_resample(mixing):
    message = "interpolate resamples an Alignment or a LowRank; this layer has .*use extend"
    with pytest.raises(ConfigError, match=message):
        interpolate(built(mixing), 12)


def test_a_causal_map():
    with pytest.raises(ConfigError, match="a causal map would look ahead; use extend"):
        interpolate(built(Alignment(9), Causal()), 12)


def test_fewer_positions_than_sums():
    with pytest.raises(ConfigError, match=r"LowRank\(length=3, rank=4\): give the longest input"):
        interpolate(built(LowRank(9, 4)), 3)


def test_modes_and_lengths():
    layer = built(Alignment(9))
    with pytest.raises(ConfigError, match="unknown mode of interpolate 'cubics'; did you mean 'cu"):
        interpolate(layer, 12, mode="cubics")
    for length in (0, -1):
        with pytest.raises(ConfigError, match=f"interpolate to length={length}: give the new"):
            interpolate(layer, length)


@pytest.mark.parametrize(
    ("grid", "length"),
    [
        ((3, 3), 10 + 1),  # no square
        ((3, 3), 17),  # a token that was not there
        ((2, 3), 16),  # positions left over
        ((2, 4), 1),  # no patch left beside the token
        ((4, 4), 16),  # more patches than positions
        ((0, 9), 16),
        ((-3, -3), 16),
        ((1, 8), 9 + 16),  # another shape
    ],
)
def test_grids_that_do_not_fit(grid, length):
    message = rf"grid=\({grid[0]}, {grid[1]}\) of 9 positions cannot become {length}: the old and"
    with pytest.raises(ConfigError, match=message):
        interpolate(built(Alignment(9)), length, grid=grid)
