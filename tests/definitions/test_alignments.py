"""V' = W_A V + b; in a causal layer W_A is lower triangular.

Alignment: W_A and b as they are; a shorter sequence uses the top-left block.
Banded: W_A[t, s] = 0 unless |t - s| < width; column j of row t of the parameter is
W_A[t, t - (width - 1) + j]; b has one number per position.
Toeplitz: W_A[t, s] = c[t - s], 0 unless |t - s| < width; column j of the parameter is
c[width - 1 - j]; b is one number.
Block: W_A[t, s] = M[t mod c, s mod c] within a block of c positions, else 0; b_t = b[t mod c].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.encoders import Efficient, Optimised
from suffice.mixing import Alignment, BandedAlignment, BlockAlignment, ToeplitzAlignment
from suffice.patterns import Causal, Full, Window
from suffice.testing import assert_close, documents, normal, padded

from .loops import (
    Matrix,
    attention,
    built,
    everything,
    gradients_agree,
    linear,
    tensor,
    up_to_self,
)

Map = Callable[[int, int], float]
Offset = Callable[[int], float]


def mixed(v: Matrix, maps: list[Map], offsets: list[Offset], groups: int) -> Matrix:
    """Each head of the values by its own map, or all by one."""
    width, out = len(v[0]) // groups, []
    for t in range(len(v)):
        row = []
        for column in range(len(v[0])):
            which = column // width if len(maps) > 1 else 0
            terms = (maps[which](t, s) * v[s][column] for s in range(len(v)))
            row.append(math.fsum(terms) + offsets[which](t))
        out.append(row)
    return out


def definition(layer: Attention, x: Matrix, memory: Matrix, maps, offsets) -> Matrix:
    """The output for one row of a layer whose values go through these maps."""
    spec = layer.spec
    q = linear(x, layer.q_proj)
    width = len(q[0]) // spec.num_heads
    k = linear(memory, layer.k_proj) if hasattr(layer.k_proj, "weight") else memory
    v = linear(memory, layer.v_proj) if hasattr(layer.v_proj, "weight") else memory
    v = [row[: spec.kv_heads * width] for row in v]
    return attention(
        layer,
        q,
        k,
        mixed(v, maps, offsets, spec.kv_heads),
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=width,
        see=up_to_self if spec.pattern.causal else everything,
    )


def outputs(layer: Attention, x: torch.Tensor, form, memory: torch.Tensor | None = None):
    """`definition` of each row; form(layer) gives the maps and the offsets."""
    maps, offsets = form(layer)
    memory = x if memory is None else memory
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    return tensor([definition(layer, r, m, maps, offsets) for r, m in pairs])


PATTERNS = {"two-sided": Full(), "causal": Causal()}


def mixing_of(kind, size, length=11, **options):
    if kind is Alignment:
        return kind(length, **options)
    if kind is BandedAlignment:
        return kind(length, size, **options)
    return kind(size, **options)


def spec_of(kind, size, pattern, *, heads=(2, 2), length=11, per_head=False, bias=True, **rest):
    return AttentionSpec(
        d_model=8,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        pattern=pattern,
        mixing=mixing_of(kind, size, length, per_head=per_head, bias=bias),
        **rest,
    )


def form(layer):
    """W_A[t, s] and b[t] of each map."""
    mixing, causal = layer.spec.mixing, layer.spec.pattern.causal
    period = len(layer.mixing.weight[0])  # of the biases
    if type(mixing) is ToeplitzAlignment:
        period = 1

    def number(numbers, t, s):
        if type(mixing) is Alignment:
            return numbers[t][s] if s <= t or not causal else 0.0
        if type(mixing) is BlockAlignment:
            inside = t // period == s // period and (s <= t or not causal)
            return numbers[t % period][s % period] if inside else 0.0
        inside = -(1 if causal else mixing.width) < t - s < mixing.width
        row = numbers[t] if type(mixing) is BandedAlignment else numbers
        return row[s - t + mixing.width - 1] if inside else 0.0

    weight, bias = layer.mixing.weight.tolist(), layer.mixing.bias
    rows = [[0.0] * period] * len(weight) if bias is None else bias.tolist()
    if type(mixing) is ToeplitzAlignment and bias is not None:
        rows = [[row] for row in rows]
    return (
        [lambda t, s, numbers=numbers: number(numbers, t, s) for numbers in weight],
        [lambda t, row=row: row[t % period] for row in rows],
    )


def shape_of(kind, size, causal):
    """The shape of the parameter of one map for all heads."""
    offsets = size if causal else 2 * size - 1
    shapes = {
        Alignment: (1, 11, 11),
        BandedAlignment: (1, 11, offsets),
        ToeplitzAlignment: (1, offsets),
    }
    return shapes.get(kind, (1, size, size))


SIZES = {
    Alignment: (11,),
    BandedAlignment: (1, 2, 4, 11),
    ToeplitzAlignment: (1, 2, 4, 11, 30),
    BlockAlignment: (1, 2, 4, 11, 30),
}
every_kind = pytest.mark.parametrize("kind", SIZES)
every_pattern = pytest.mark.parametrize("pattern", PATTERNS)


@pytest.mark.parametrize("length", [1, 3, 8, 11])
@pytest.mark.parametrize(("kind", "size"), [(k, n) for k, sizes in SIZES.items() for n in sizes])
@every_pattern
def test_layer(kind, length, size, pattern):
    layer = built(spec_of(kind, size, PATTERNS[pattern], heads=(4, 2)))
    assert layer.mixing.weight.shape == shape_of(kind, size, pattern == "causal")
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, form))


@every_pattern
@every_kind
@pytest.mark.parametrize("bias", [False, True])
def test_one_map_per_head(kind, pattern, bias):
    layer = built(spec_of(kind, 3, PATTERNS[pattern], heads=(4, 2), per_head=True, bias=bias))
    assert len(layer.mixing.weight) == 2
    x = normal(2, 10, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize("encoder", [Efficient(), Optimised()], ids=repr)
@every_pattern
@every_kind
def test_other_projections(kind, encoder, pattern):
    layer = built(spec_of(kind, 3, PATTERNS[pattern], encoder=encoder))
    x = normal(2, 10, 8, seed=3)
    assert_close(layer(x), outputs(layer, x, form))


@pytest.mark.parametrize(("length", "source_length"), [(1, 9), (4, 7), (9, 4)])
@every_kind
def test_cross_attention_aligns_the_memory(kind, length, source_length):
    layer = built(spec_of(kind, 3, Full()))
    x, memory = normal(2, length, 8, seed=1), normal(2, source_length, 8, seed=2)
    assert_close(layer(x, memory), outputs(layer, x, form, memory))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@every_pattern
@every_kind
def test_positions_are_those_of_real_tokens(kind, side, pattern):
    layer = built(spec_of(kind, 3, PATTERNS[pattern]))
    x, valid = normal(4, 10, 8, seed=2), padded(4, 10, side)
    for row, keep, out in zip(x, valid, layer(x, valid=valid), strict=True):
        assert_close(out[keep], outputs(layer, row[keep][None], form)[0])


@pytest.mark.parametrize("side", [None, "left", "inside"])
@every_pattern
@every_kind
def test_positions_begin_with_their_document(kind, pattern, side):
    layer = built(spec_of(kind, 3, PATTERNS[pattern], length=14))
    x, segments = normal(3, 14, 8, seed=2), documents(3, 14, seed=1) // 2
    valid = padded(3, 14, side or "right")
    valid[:] |= side is None
    got = layer(x, segments=segments, valid=valid)
    for row, numbers, keep, out in zip(x, segments, valid, got, strict=True):
        for number in numbers[keep].unique():
            here = (numbers == number) & keep
            assert_close(out[here], outputs(layer, row[here][None], form)[0])


@every_pattern
@every_kind
def test_gradient(kind, pattern):
    layer = built(spec_of(kind, 2, PATTERNS[pattern], length=6))
    assert gradients_agree(layer, normal(2, 5, 8, seed=1))


@pytest.mark.parametrize("length", [40, 65, 100])
@pytest.mark.parametrize("width", [2, 33, 40])
@every_pattern
def test_bands_over_several_sides(length, width, pattern):
    """Sequences that are cut in pieces, against the dense alignment of the same numbers."""
    layer = built(spec_of(BandedAlignment, width, PATTERNS[pattern], length=100))
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


@pytest.mark.parametrize("length", [31, 33, 70])
@pytest.mark.parametrize("width", [2, 33, 40])
@every_pattern
def test_filters_over_several_sides(length, width, pattern):
    layer = built(spec_of(ToeplitzAlignment, width, PATTERNS[pattern]))
    x = normal(1, length, 8, seed=1)
    assert_close(layer(x), outputs(layer, x, form))


def test_beside_a_window_a_band_reads_as_far_as_both_reach():
    """Window w_s and width w_a: the last query reads w_s + w_a - 1 positions."""
    layer = built(spec_of(BandedAlignment, 3, Window(4) & Causal()))
    x = normal(1, 11, 8, seed=1).requires_grad_()
    (slope,) = torch.autograd.grad(layer(x)[0, -1].sum(), x)
    assert slope[0].any(dim=-1).tolist() == [False] * 5 + [True] * 6
