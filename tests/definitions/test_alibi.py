"""Alibi: the score of query t and key s in head h gets -slope_h |t - s|.

With n = 2^m heads the slopes are 2^(-8 h / n), h = 1..n. Other counts take those of the next
smaller power of two, then every other one of twice that power.
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.patterns import Causal, Full, Window
from suffice.positions import Alibi
from suffice.testing import assert_close, documents, normal, padded

from .loops import (
    built,
    causal,
    columns,
    dot,
    everything,
    gradients_agree,
    joined,
    linear,
    probabilities,
    tensor,
    up_to_self,
)


def slopes_of(n):
    """The sequence of the paper: starts at 2^(-8/n), with that ratio; else a mixture."""
    power = 2 ** int(math.log2(n))
    own = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    twice = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)]
    return own + twice[::2][: n - power]


def definition(layer, x, see=everything):
    heads, groups = layer.spec.num_heads, layer.spec.kv_heads
    q, k, v = (linear(x, part) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    width = len(q[0]) // heads
    parts = []
    for h, slope in enumerate(slopes_of(heads)):
        g = h // (heads // groups)
        keys, values, out = columns(k, g, width), columns(v, g, width), []
        for t, query in enumerate(columns(q, h, width)):
            scores = [dot(query, key) / math.sqrt(width) for key in keys]
            scores = [score - slope * abs(t - s) for s, score in enumerate(scores)]
            shares = probabilities(scores, [see(t, s) for s in range(len(x))])
            out.append([dot(shares, [row[e] for row in values]) for e in range(width)])
        parts.append(out)
    return linear(joined(parts), layer.o_proj)


@pytest.mark.parametrize(
    ("heads", "want"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-h for h in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes(heads, want):
    assert slopes_of(heads) == want
    bias = Alibi().bias(heads, torch.tensor([[3]]), torch.tensor([[2]]))
    assert_close(-bias.double().flatten(), torch.tensor(want, dtype=torch.float64))


def test_bias_of_positions():
    q, k = torch.tensor([9, 0, 4]), torch.tensor([2, 9, 0, 5])
    bias = Alibi().bias(4, q[:, None], k[None])
    want = [
        [[-slope * abs(t - s) for s in k.tolist()] for t in q.tolist()] for slope in slopes_of(4)
    ]
    assert_close(bias.double(), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 1), (3, 3)])
def test_layer(length, is_causal, heads):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(
        d_model=12,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        pattern=pattern,
        position=Alibi(),
    )
    layer, x = built(spec), normal(2, length, 12, seed=length)
    assert_close(layer(x), tensor([definition(layer, row, see) for row in x.tolist()]))


@pytest.mark.parametrize("length", [1, 5, 11])
def test_with_a_window(length):
    spec = AttentionSpec(d_model=8, num_heads=4, pattern=Window(3) & Causal(), position=Alibi())
    layer, x = built(spec), normal(2, length, 8, seed=length)
    see = causal(lambda t, s: t - s < 3)
    assert_close(layer(x), tensor([definition(layer, row, see) for row in x.tolist()]))


def test_a_scale_of_the_products_leaves_the_bias():
    """With products of 0 the weights are the softmax of the bias alone."""
    layer = built(AttentionSpec(d_model=8, num_heads=2, position=Alibi(), scale=3.0))
    with torch.no_grad():
        layer.q_proj.weight.zero_()
        layer.q_proj.bias.zero_()
    got = layer.weights(normal(1, 5, 8, seed=1))[0]
    for slope, rows in zip(slopes_of(2), got, strict=True):
        want = [
            probabilities([-slope * abs(t - s) for s in range(5)], [True] * 5) for t in range(5)
        ]
        assert_close(rows, torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_distances_count_real_tokens(side, is_causal):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    layer = built(AttentionSpec(d_model=8, num_heads=2, pattern=pattern, position=Alibi()))
    x, valid = normal(4, 6, 8, seed=2), padded(4, 6, side)
    for row, keep, out in zip(x, valid, layer(x, valid=valid), strict=True):
        assert_close(out[keep], tensor(definition(layer, row[keep].tolist(), see)))


def test_distances_within_a_document():
    layer = built(AttentionSpec(d_model=8, num_heads=2, position=Alibi()))
    x, segments = normal(3, 8, 8, seed=2), documents(3, 8, seed=1)
    for row, numbers, out in zip(x, segments, layer(x, segments=segments), strict=True):
        for number in numbers.unique():
            here = numbers == number
            assert_close(out[here], tensor(definition(layer, row[here].tolist())))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, position=Alibi()))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
