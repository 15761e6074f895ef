"""BlockAlignment: W_A[t, s] = M[t mod c, s mod c] within a block of c positions, else 0.

b_t = b[t mod c]; in a causal layer M is lower triangular.
"""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised
from suffice.mixing import Alignment, BlockAlignment
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, documents, normal, padded

from .loops import built, gradients_agree
from .maps import outputs

PATTERNS = {"two-sided": Full(), "causal": Causal()}


def form(layer):
    """W_A[t, s] and b[t] of each map."""
    size, causal = layer.spec.mixing.size, layer.spec.pattern.causal

    def map_of(square):
        def number(t, s):
            inside = t // size == s // size and (s <= t or not causal)
            return square[t % size][s % size] if inside else 0.0

        return number

    weight, bias = layer.mixing.weight.tolist(), layer.mixing.bias
    rows = [[0.0] * size] * len(weight) if bias is None else bias.tolist()
    return [map_of(m) for m in weight], [lambda t, b=b: b[t % size] for b in rows]


def spec_of(size, pattern, *, heads=(2, 2), per_head=False, bias=True, **rest):
    mixing = BlockAlignment(size, per_head=per_head, bias=bias)
    return AttentionSpec(
        d_model=8,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        pattern=pattern,
        mixing=mixing,
        **rest,
    )


@pytest.mark.parametrize("length", [1, 3, 8, 11])
@pytest.mark.parametrize("size", [1, 2, 4, 30])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_layer(length, size, pattern):
    layer = built(spec_of(size, PATTERNS[pattern], heads=(4, 2)))
    assert layer.mixing.weight.shape == (1, size, size)
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bias", [False, True])
def test_one_map_per_head(pattern, bias):
    layer = built(spec_of(3, PATTERNS[pattern], heads=(4, 2), per_head=True, bias=bias))
    assert len(layer.mixing.weight) == 2
    x = normal(2, 10, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("encoder", [Efficient(), Optimised()], ids=["efficient", "optimised"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_other_projections(encoder, pattern):
    layer = built(spec_of(3, PATTERNS[pattern], encoder=encoder))
    x = normal(2, 10, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_up_to_one_block_it_is_the_alignment_of_that_length(length, pattern):
    layer = built(spec_of(7, PATTERNS[pattern]))
    dense = built(
        AttentionSpec(d_model=8, num_heads=2, pattern=PATTERNS[pattern], mixing=Alignment(7))
    )
    dense.load_state_dict(layer.state_dict())
    x = normal(2, length, 8, seed=1)
    assert_close(layer(x), dense(x))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4)])
def test_cross_attention_aligns_the_memory(length, source_length):
    layer = built(spec_of(3, Full()))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    assert_close(layer(x, memory), outputs(layer, x, form, memory))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_blocks_count_real_tokens(side, pattern):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, valid = normal(4, 10, 8, seed=2), padded(4, 10, side)
    for row, keep, out in zip(x, valid, layer(x, valid=valid), strict=True):
        assert_close(out[keep], outputs(layer, row[keep][None], form)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("side", [None, "left", "inside"])
def test_blocks_start_with_their_document(pattern, side):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, segments = normal(3, 14, 8, seed=2), documents(3, 14, seed=1) // 2
    valid = padded(3, 14, side or "right")
    valid[:] |= side is None
    got = layer(x, segments=segments, valid=valid)
    for row, numbers, keep, out in zip(x, segments, valid, got, strict=True):
        for number in numbers[keep].unique():
            here = (numbers == number) & keep
            assert_close(out[here], outputs(layer, row[here][None], form)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gradient(pattern):
    layer = built(spec_of(2, PATTERNS[pattern]))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))
