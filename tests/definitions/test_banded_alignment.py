"""BandedAlignment: W_A[t, s] = 0 unless |t - s| < width; causal, unless 0 <= t - s < width.

Column j of row t of the parameter is W_A[t, t - (width - 1) + j]; b has one number per position.
"""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Efficient, Optimised
from suffice.mixing import Alignment, BandedAlignment
from suffice.patterns import Causal, Full, Window
from suffice.testing import assert_close, documents, normal, padded

from .loops import built, gradients_agree
from .maps import outputs

PATTERNS = {"two-sided": Full(), "causal": Causal()}


def form(layer):
    """W_A[t, s] and b[t] of each map."""
    width, causal = layer.spec.mixing.width, layer.spec.pattern.causal
    ahead = 1 if causal else width

    def map_of(diagonals):
        def number(t, s):
            inside = -ahead < t - s < width
            return diagonals[t][s - t + width - 1] if inside else 0.0

        return number

    weight, bias = layer.mixing.weight.tolist(), layer.mixing.bias
    rows = [[0.0] * layer.spec.mixing.length] * len(weight) if bias is None else bias.tolist()
    return [map_of(d) for d in weight], [row.__getitem__ for row in rows]


def spec_of(width, pattern, *, length=11, heads=(2, 2), per_head=False, bias=True, **rest):
    mixing = BandedAlignment(length, width, per_head=per_head, bias=bias)
    return AttentionSpec(
        d_model=8,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        pattern=pattern,
        mixing=mixing,
        **rest,
    )


@pytest.mark.parametrize("length", [1, 3, 8, 11])
@pytest.mark.parametrize("width", [1, 2, 4, 11])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_layer(length, width, pattern):
    layer = built(spec_of(width, PATTERNS[pattern], heads=(4, 2)))
    offsets = width if pattern == "causal" else 2 * width - 1
    assert layer.mixing.weight.shape == (1, 11, offsets)
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bias", [False, True])
def test_one_map_per_head(pattern, bias):
    layer = built(spec_of(3, PATTERNS[pattern], heads=(4, 2), per_head=True, bias=bias))
    x = normal(2, 9, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("encoder", [Efficient(), Optimised()], ids=["efficient", "optimised"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_other_projections(encoder, pattern):
    layer = built(spec_of(3, PATTERNS[pattern], encoder=encoder))
    x = normal(2, 9, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("length", [40, 65, 100])
@pytest.mark.parametrize("width", [2, 33, 40])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_over_several_sides(length, width, pattern):
    """Sequences that are cut in pieces, against the dense alignment of the same numbers."""
    layer = built(spec_of(width, PATTERNS[pattern], length=100))
    dense = built(
        AttentionSpec(d_model=8, num_heads=2, pattern=PATTERNS[pattern], mixing=Alignment(100))
    )
    maps, offsets = form(layer)
    table = [[maps[0](t, s) for s in range(100)] for t in range(100)]
    state = layer.state_dict()
    state["mixing.weight"] = torch.tensor([table], dtype=torch.float64)
    dense.load_state_dict(state)
    assert [offsets[0](t) for t in range(100)] == dense.mixing.bias[0].tolist()
    x = normal(2, length, 8, seed=1)
    assert_close(layer(x), dense(x))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4)])
def test_cross_attention_aligns_the_memory(length, source_length):
    layer = built(spec_of(3, Full()))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    assert_close(layer(x, memory), outputs(layer, x, form, memory))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_count_real_tokens(side, pattern):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, valid = normal(4, 9, 8, seed=2), padded(4, 9, side)
    for row, keep, out in zip(x, valid, layer(x, valid=valid), strict=True):
        assert_close(out[keep], outputs(layer, row[keep][None], form)[0])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_count_within_a_document(pattern):
    layer = built(spec_of(3, PATTERNS[pattern]))
    x, segments = normal(3, 11, 8, seed=2), documents(3, 11, seed=1)
    for row, numbers, out in zip(x, segments, layer(x, segments=segments), strict=True):
        for number in numbers.unique():
            here = numbers == number
            assert_close(out[here], outputs(layer, row[here][None], form)[0])


def test_beside_a_window_it_reads_so_far_and_no_further():
    """Window w_s and width w_a: the last query reads w_s + w_a - 1 positions."""
    layer, x = built(spec_of(3, Window(4) & Causal())), normal(1, 11, 8, seed=1)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(layer(x)[0, -1].sum(), x)
    assert slope[0].any(dim=-1).tolist() == [False] * 5 + [True] * 6


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gradient(pattern):
    layer = built(spec_of(2, PATTERNS[pattern], length=6))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))
