"""Differential attention: the difference of two softmaxes over values twice as wide."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import Efficient, Optimised
from suffice.errors import ConfigError, UnsupportedError
from suffice.kernels import Elu
from suffice.mixing import LowRank
from suffice.ops import OPS
from suffice.patterns import Causal
from suffice.spec.lowering import DenseSoftmax, DifferentialSoftmax
from suffice.testing import assert_close, conform, normal

from .loops import built, columns, dot, linear, tensor

SPEC = AttentionSpec(d_model=12, num_heads=2, combine=Differential(depth=3))
CAUSAL = replace(SPEC, pattern=Causal())


def softmax(scores):
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return [w / math.fsum(weights) for w in weights]


def definition(layer, x, *, start, width, groups=2, causal=False):
    """Equations 1 to 3 of arXiv:2410.05258 for one row; `start` is lambda_init."""
    q, k, v = (linear(x, m) for m in (layer.q_proj, layer.k_proj, layer.v_proj))
    q1, k1, q2, k2 = layer.difference.lambdas.tolist()
    factor = math.exp(dot(q1, k1)) - math.exp(dot(q2, k2)) + start
    gain, eps = layer.difference.norm.weight.tolist(), layer.difference.norm.eps
    rows = [[] for _ in x]
    for head in range(2):
        group = head * groups // 2
        maps = []
        for which in range(2):
            queries = columns(q, 2 * head + which, width)
            keys = columns(k, 2 * group + which, width)
            seen = [keys[: t + 1] if causal else keys for t in range(len(x))]
            scores = [
                [dot(a, b) / math.sqrt(width) for b in of_query]
                for a, of_query in zip(queries, seen, strict=True)
            ]
            maps.append([softmax(row) for row in scores])
        values = columns(v, group, 2 * width)
        for t, row in enumerate(rows):
            weights = [a - factor * b for a, b in zip(maps[0][t], maps[1][t], strict=True)]
            read = [
                math.fsum(w * values[s][e] for s, w in enumerate(weights)) for e in range(2 * width)
            ]
            size = math.sqrt(math.fsum(r * r for r in read) / (2 * width) + eps)
            row += [(1 - start) * g * r / size for g, r in zip(gain, read, strict=True)]
    return linear(rows, layer.o_proj)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("depth", [0, 3])
def test_forward(depth, groups, causal):
    spec = replace(SPEC, num_kv_heads=groups, combine=Differential(depth=depth))
    layer = built(replace(spec, pattern=Causal()) if causal else spec)
    x, start = normal(2, 5, 12, seed=1), 0.8 - 0.6 * math.exp(-0.3 * depth)
    want = [
        definition(layer, r, start=start, width=3, groups=groups, causal=causal) for r in x.tolist()
    ]
    assert_close(layer(x), tensor(want))


def test_columns_of_the_input_are_keys_and_values():
    """Efficient and Optimised compose: their values are the columns of x, 2 D to a head."""
    for encoder in (Efficient(), Optimised()):
        layer = built(replace(SPEC, encoder=encoder))
        x = normal(2, 5, 12, seed=2)
        _, v = layer.keys_and_values(x)
        assert torch.equal(v.transpose(1, 2).flatten(2), x)


@pytest.mark.parametrize("name", [n for n in OPS if n not in ("native_scan", "scan", "folded")])
def test_every_op_computes_it_or_refuses(name):
    layer = built(SPEC)
    x = normal(2, 9, 12, seed=3)
    want = layer(x)
    layer.impl = name
    with suppress(UnsupportedError):
        assert_close(layer(x), want)


def test_what_it_costs():
    spec = replace(SPEC, num_kv_heads=1)
    layer, width = built(spec), 3
    maps = 12 * 12 + 12 + 2 * (12 * 6 + 6) + 12 * 12 + 12
    assert sum(p.numel() for p in layer.parameters()) == maps + 4 * width + 2 * width
    cost = spec.cost(7)
    assert cost.parameters == maps + 6 * width
    linear_flops = 2 * 7 * (12 * 12 + 2 * 12 * 6 + 12 * 12)
    assert cost.flops == linear_flops + 4 * 2 * 7 * 7 * (width + 2 * width)
    assert cost.state_numbers == 2 * 6
    assert spec.cached_widths == ((2, 3), (1, 6))


@pytest.mark.parametrize("sample", Differential.samples(), ids=str)
@pytest.mark.parametrize("encoder", [Optimised(), Efficient()], ids=str)
def test_it_conforms(sample, encoder):
    conform(replace(CAUSAL, combine=sample, encoder=encoder))


def test_gradients():
    layer = built(replace(SPEC, num_heads=1, d_model=4))
    names = [name for name, _ in layer.named_parameters()]
    assert "difference.lambdas" in names
    x = normal(1, 3, 4, seed=6).requires_grad_()

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": Elu()}, "kernel"),
        ({"mixing": LowRank(length=8, rank=2)}, "mixing"),
        ({"num_heads": 5}, "num_heads=5"),
    ],
)
def test_what_it_refuses(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SPEC, **change)


def test_its_description_is_a_record_of_its_own():
    assert type(SPEC.lower()) is DifferentialSoftmax
    assert type(preset("standard", 8, 2).lower()) is DenseSoftmax


def test_the_preset_numbers_its_layers():
    from suffice.presets import schedule

    depths = [s.combine.depth for s in schedule("differential", 16, 2, depth=3, causal=True)]
    assert depths == [0, 1, 2]
