"""Infini-attention, segment by segment from its equations: plain loops over rows and heads.

A_mem = phi(Q) M / (phi(Q) z); M' = M + phi(K)^T V, or with the delta rule
M' = M + phi(K)^T (V - phi(K) M / (phi(K) z)); z' = z + sum phi(K); phi = elu + 1;
A = sigmoid(beta) A_mem + (1 - sigmoid(beta)) A_dot.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from suffice import Attention, preset
from suffice.errors import ConfigError
from suffice.kernels import Elu
from suffice.memory.past import Infini, NoPast
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.testing import assert_close, drawn, normal

LENGTH, D_MODEL, NUM_HEADS = 11, 8, 4
SPEC = preset("infini", D_MODEL, NUM_HEADS, segment=3)


def phi(x):
    return [v + 1.0 if v > 0 else math.exp(v) for v in x]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def memory_told(q, m, z, width):
    if m is None:
        return [0.0] * width
    f = phi(q)
    return [dot(f, [row[e] for row in m]) / dot(f, z) for e in range(width)]


def local(q, keys, values, scale):
    powers = [math.exp(scale * dot(q, k)) for k in keys]
    total = sum(powers)
    width = len(values[0])
    return [
        sum(p * v[e] for p, v in zip(powers, values, strict=True)) / total for e in range(width)
    ]


def one_head(q, k, v, segment, delta, beta, scale, turned_q, turned_k):
    """q, k before any rotation, as lists of rows."""
    share, width = 1 / (1 + math.exp(-beta)), len(v[0])
    m = z = None
    out = []
    for start in range(0, len(q), segment):
        here = range(start, min(start + segment, len(q)))
        for t in here:
            told = memory_told(q[t], m, z, width)
            near = local(turned_q[t], turned_k[start : t + 1], v[start : t + 1], scale)
            out.append([share * a + (1 - share) * b for a, b in zip(told, near, strict=True)])
        new_m = [[0.0] * width for _ in q[0]] if m is None else [list(row) for row in m]
        new_z = [0.0] * len(q[0]) if z is None else list(z)
        for s in here:
            f, value = phi(k[s]), v[s]
            if delta and m is not None:
                known = memory_told(k[s], m, z, width)
                value = [a - b for a, b in zip(value, known, strict=True)]
            for d, weight in enumerate(f):
                new_z[d] += weight
                for e in range(width):
                    new_m[d][e] += weight * value[e]
        m, z = new_m, new_z
    return out


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("position", [None, Rope()], ids=repr)
@pytest.mark.parametrize("segment", [1, 3, 4, 11, 20])
def test_infini(delta, kv_heads, position, segment):
    spec = preset("infini", D_MODEL, NUM_HEADS, segment=segment, delta=delta)
    spec = replace(spec, num_kv_heads=kv_heads)
    if position is not None:
        spec = replace(spec, position=position)
    layer = drawn(Attention(spec, dtype=torch.float64), seed=3)
    x = normal(2, LENGTH, D_MODEL, seed=1)

    def heads(linear, count):
        return linear(x).view(2, LENGTH, count, -1).transpose(1, 2)

    q = heads(layer.q_proj, NUM_HEADS)
    k, v = heads(layer.k_proj, kv_heads), heads(layer.v_proj, kv_heads)
    turned = (q, k)
    if position is not None:
        at = torch.arange(LENGTH)
        turned = position.rotate(q, at), position.rotate(k, at)
    rows = []
    for b in range(2):
        for h in range(NUM_HEADS):
            g = h * kv_heads // NUM_HEADS
            inputs = [q[b, h], k[b, g], v[b, g]]
            q_, k_, v_ = (t.tolist() for t in inputs)
            rows.append(
                one_head(
                    q_, k_, v_, segment, delta, layer.past.gate[h].item(), spec.score_scale,
                    turned[0][b, h].tolist(), turned[1][b, g].tolist(),
                )
            )  # fmt: skip
    want = torch.tensor(rows, dtype=torch.float64).view(2, NUM_HEADS, LENGTH, -1)
    want = layer.o_proj(want.transpose(1, 2).flatten(2))
    assert_close(layer(x), want)


def test_without_a_past_nothing_is_added():
    spec = preset("standard", D_MODEL, NUM_HEADS, causal=True)
    assert spec.past == NoPast()
    near = preset("infini", D_MODEL, NUM_HEADS, segment=64)
    layer, plain = Attention(near, dtype=torch.float64), Attention(spec, dtype=torch.float64)
    plain.load_state_dict({n: p for n, p in layer.state_dict().items() if n != "past.gate"})
    layer.past.gate.data.fill_(-1e9)  # nothing of the memory
    x = normal(2, LENGTH, D_MODEL, seed=1)
    assert_close(layer(x), plain(x))
    assert Infini(64).parameters(NUM_HEADS) == NUM_HEADS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Infini(0), "give at least 1 position"),
        (lambda: replace(SPEC, pattern=Causal()), "pattern=Causal.*: give And"),
        (lambda: replace(SPEC, kernel=Elu()), "kernel=Elu.*: give Softmax"),
        (lambda: replace(SPEC, mixing=ToeplitzAlignment(2)), "mixing=.*: give NoMixing"),
    ],
)
def test_what_does_not_go_with_it(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
