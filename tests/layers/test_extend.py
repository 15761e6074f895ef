"""A longer mixing: old lengths give what they gave, new positions start as themselves."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, AttentionSpec, extend, preset
from suffice.encoders import Efficient
from suffice.errors import ConfigError
from suffice.mixing import Alignment, BandedAlignment, LowRank, RowLayout, ToeplitzAlignment
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


def test_the_spec_tells_the_new_length():
    layer = layer_of()
    longer = extend(layer, 8)
    assert longer.spec.mixing == Alignment(8)
    assert longer.spec.max_length == 8
    assert longer.spec.cost(8).parameters == sum(p.numel() for p in longer.parameters())
    again = Attention(longer.spec, dtype=torch.float64)
    again.load_state_dict(longer.state_dict())
    x = normal(2, 8, D, seed=1)
    assert_close(again(x), longer(x), "exact")


def test_the_old_layer_keeps_its_own_weights():
    layer = layer_of()
    x = normal(2, 5, D, seed=1)
    before = layer(x)
    drawn(extend(layer, 8), seed=9)
    assert_close(layer(x), before, "exact")
    assert layer.spec.mixing.length == 5


def test_the_copy_trains():
    longer = extend(layer_of(), 8)
    longer(normal(2, 8, D, seed=1)).square().sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in longer.parameters())


def test_what_was_frozen_stays_frozen():
    layer = layer_of().requires_grad_(requires_grad=False)
    assert not any(p.requires_grad for p in extend(layer, 8).parameters())


def test_mode_dtype_and_impl_do_not_change():
    layer = Attention(preset("super_attention", D, 2, length=5), impl="matmul").half().eval()
    longer = extend(layer, 8)
    assert not longer.training
    assert longer.impl == "matmul"
    assert {p.dtype for p in longer.parameters()} == {torch.float16}


def test_longer_input_is_refused_with_the_way_out():
    from suffice.errors import ShapeError

    layer = layer_of()
    message = r"6 keys are more than the 5 .* suffice.extend\(layer, 6\)"
    with pytest.raises(ShapeError, match=message):
        layer(normal(2, 6, D, seed=1))
    assert extend(layer, 6)(normal(2, 6, D, seed=1)).shape == (2, 6, D)


OTHERS = [
    BandedAlignment(5, 1),
    BandedAlignment(5, 3, init="glorot"),
    BandedAlignment(5, 5, per_head=True, bias=False),
    LowRank(5, 2),
    LowRank(5, 3, shared=False, per_head=True),
]


def built(mixing, causal=False) -> Attention:
    axes = [mixing, *([Causal()] if causal else [])]
    return drawn(Attention(spec_around(*axes), dtype=torch.float64), seed=3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixing", OTHERS, ids=repr)
def test_old_lengths_of_other_mixings(mixing, causal):
    if causal and isinstance(mixing, LowRank):
        return
    layer = built(mixing, causal)
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
    layer = built(mixing, causal)
    longer = extend(layer, 9)
    v = normal(2, 2, 9, 4, seed=1)
    _, mixed = longer.mixing(v, v, RowLayout())
    _, before = layer.mixing(v[:, :, :5], v[:, :, :5], RowLayout())
    assert_close(mixed[:, :, :5], before)
    assert_close(mixed[:, :, 5:], v[:, :, 5:])


def test_new_positions_enter_no_sum():
    layer = built(LowRank(5, 2, shared=False))
    longer, x = extend(layer, 8), normal(2, 2, 8, 4, seed=1)
    for got, want in zip(
        longer.mixing(x, x, RowLayout()),
        layer.mixing(x[:, :, :5], x[:, :, :5], RowLayout()),
        strict=True,
    ):
        assert_close(got, want)
    assert torch.equal(longer.mixing.keys[..., 5:], torch.zeros(1, 2, 3).double())


def test_the_same_length_is_a_copy():
    layer = layer_of()
    same = extend(layer, 5)
    drawn(same, seed=9)
    assert not torch.equal(same.mixing.weight, layer.mixing.weight)


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
