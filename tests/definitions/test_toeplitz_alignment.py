"""ToeplitzAlignment: V'_t = sum over |o| < width of c[o] V_(t-o) + b; causal, 0 <= o < width.

Column j of the parameter is c[width - 1 - j]; b is one number.
"""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, documents, normal, padded

from .loops import built, gradients_agree
from .maps import outputs

PATTERNS = {"two-sided": Full(), "causal": Causal()}


def form(layer):
    """W_A[t, s] = c[t - s] and b of each map."""
    width, causal = layer.spec.mixing.width, layer.spec.pattern.causal
    ahead = 1 if causal else width

    def map_of(numbers):
        c = {width - 1 - j: number for j, number in enumerate(numbers)}
        assert sorted(c) == list(range(1 - ahead, width))
        return lambda t, s: c.get(t - s, 0.0)

    weight, bias = layer.mixing.weight.tolist(), layer.mixing.bias
    numbers = [0.0] * len(weight) if bias is None else bias.tolist()
    return [map_of(c) for c in weight], [lambda t, b=b: b for b in numbers]


def spec_of(width, pattern, *, heads=(2, 2), per_head=False, bias=True, **rest):
    mixing = ToeplitzAlignment(width, per_head=per_head, bias=bias)
    return AttentionSpec(
        d_model=8,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        pattern=pattern,
        mixing=mixing,
        **rest,
    )


@pytest.mark.parametrize("length", [1, 3, 8, 11])
@pytest.mark.parametrize("width", [1, 2, 4, 30])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_layer(length, width, pattern):
    layer = built(spec_of(width, PATTERNS[pattern], heads=(4, 2)))
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bias", [False, True])
def test_one_filter_per_head(pattern, bias):
    layer = built(spec_of(3, PATTERNS[pattern], heads=(4, 2), per_head=True, bias=bias))
    assert len(layer.mixing.weight) == 2
    x = normal(2, 9, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("encoder", [Efficient(), Optimised()], ids=["efficient", "optimised"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_other_projections(encoder, pattern):
    layer = built(spec_of(3, PATTERNS[pattern], encoder=encoder))
    x = normal(2, 9, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("length", [31, 33, 70])
@pytest.mark.parametrize("width", [2, 33, 40])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_over_several_sides(length, width, pattern):
    layer = built(spec_of(width, PATTERNS[pattern]))
    x = normal(1, length, 8, seed=1)
    assert_close(layer(x), outputs(layer, x, form))


def test_a_causal_filter_is_a_convolution():
    """V' by torch's own convolution, each feature a signal of its own."""
    layer = built(spec_of(3, Causal(), bias=False, encoder=Efficient()))
    x = normal(1, 20, 8, seed=1)
    signals = torch.nn.functional.pad(x.mT.transpose(0, 1), (2, 0))
    values = torch.nn.functional.conv1d(signals, layer.mixing.weight[:, None])
    values = values.transpose(0, 1).mT.unflatten(-1, (2, 4)).transpose(1, 2)
    want = layer.weights(x) @ values
    assert_close(layer(x), layer.o_proj(want.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4)])
def test_cross_attention_aligns_the_memory(length, source_length):
    layer = built(spec_of(3, Full()))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    assert_close(layer(x, memory), outputs(layer, x, form, memory))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_neighbours_are_real_tokens(side, pattern):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, valid = normal(4, 9, 8, seed=2), padded(4, 9, side)
    for row, keep, out in zip(x, valid, layer(x, valid=valid), strict=True):
        assert_close(out[keep], outputs(layer, row[keep][None], form)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_neighbours_are_of_the_same_document(pattern):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, segments = normal(3, 11, 8, seed=2), documents(3, 11, seed=1)
    for row, numbers, out in zip(x, segments, layer(x, segments=segments), strict=True):
        for number in numbers.unique():
            here = numbers == number
            assert_close(out[here], outputs(layer, row[here][None], form)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gradient(pattern):
    layer = built(spec_of(2, PATTERNS[pattern]))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))
