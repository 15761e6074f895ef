"""Multi-head latent attention: keys and values of all heads from one latent, one rotary key."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from suffice import Attention, AttentionSpec
from suffice.encoders import MLA, HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Elu
from suffice.memory import Static
from suffice.mixing import Alignment
from suffice.ops.native import library
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.spec.lowering import LatentSoftmax
from suffice.testing import assert_close, conform, drawn, normal

from .loops import built, columns, dot, linear, tensor
from .test_differential import softmax

D_MODEL, HEADS, CONTENT = 8, 2, 3
PLAIN = AttentionSpec(
    d_model=D_MODEL, num_heads=HEADS, head_dim=CONTENT, encoder=MLA(rank=5, rotary_dim=4)
)
DEEP = replace(PLAIN, encoder=MLA(rank=5, rotary_dim=4, value_dim=2, query_rank=6))
ROTARY = replace(DEEP, position=Rope(50.0), pattern=Causal())


def rms(rows, norm):
    gain = norm.weight.tolist()
    sizes = [math.sqrt(dot(r, r) / len(r) + norm.eps) for r in rows]
    pairs = zip(rows, sizes, strict=True)
    return [[g * a / size for g, a in zip(gain, row, strict=True)] for row, size in pairs]


def turned(row, position, theta):
    """Rotate the pairs (i, i + half) by position * theta^(-2 i / width)."""
    if theta is None:
        return row
    half = len(row) // 2
    angles = [position * theta ** (-2 * i / len(row)) for i in range(half)]
    first = [row[i] * math.cos(a) - row[i + half] * math.sin(a) for i, a in enumerate(angles)]
    second = [row[i + half] * math.cos(a) + row[i] * math.sin(a) for i, a in enumerate(angles)]
    return first + second


def definition(layer, x, *, theta=None, causal=False):
    """Equations 37 to 47 of arXiv:2405.04434, appendix C, for one row."""
    encoder = layer.spec.encoder
    rank, rotary = encoder.rank, encoder.rotary_dim
    value = encoder.value_dim or CONTENT
    if encoder.query_rank is None:
        q = linear(x, layer.q_proj)
    else:
        q = linear(rms(linear(x, layer.q_a_proj), layer.q_a_norm), layer.q_b_proj)
    down = linear(x, layer.kv_a_proj)
    latent = rms([row[:rank] for row in down], layer.kv_a_norm)
    k_rotary = [turned(row[rank:], s, theta) for s, row in enumerate(down)]
    up = linear(latent, layer.kv_b_proj)
    rows = [[] for _ in x]
    for head in range(HEADS):
        queries = columns(q, head, CONTENT + rotary)
        of_head = columns(up, head, CONTENT + value)
        keys = [row[:CONTENT] + k for row, k in zip(of_head, k_rotary, strict=True)]
        for t, query in enumerate(queries):
            query = query[:CONTENT] + turned(query[CONTENT:], t, theta)
            seen = keys[: t + 1] if causal else keys
            weights = softmax([dot(query, k) / math.sqrt(CONTENT + rotary) for k in seen])
            rows[t] += [
                math.fsum(w * of_head[s][CONTENT + e] for s, w in enumerate(weights))
                for e in range(value)
            ]
    return linear(rows, layer.o_proj)


@pytest.mark.parametrize("spec", [PLAIN, DEEP], ids=["queries of x", "queries of a latent"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("theta", [None, 50.0])
def test_forward(spec, causal, theta):
    spec = replace(spec, pattern=Causal()) if causal else spec
    spec = spec if theta is None else replace(spec, position=Rope(theta))
    layer = built(spec)
    x = normal(2, 6, D_MODEL, seed=1)
    want = [definition(layer, row, theta=theta, causal=causal) for row in x.tolist()]
    assert_close(layer(x), tensor(want))


class Adapted(nn.Module):
    """A map with an adapter, whose `weight` is that of the map alone, as peft has it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(normal(2, base.in_features, seed=8))
        self.up = nn.Parameter(normal(base.out_features, 2, seed=9))

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_an_adapted_map_is_read_in_steps_too():
    layer, x = built(ROTARY), normal(2, 7, D_MODEL, seed=2)
    layer.kv_b_proj = Adapted(layer.kv_b_proj)
    with torch.no_grad():
        merged = layer.kv_b_proj.up @ layer.kv_b_proj.down + layer.kv_b_proj.weight
        plain = built(ROTARY)
        plain.kv_b_proj.weight.copy_(merged)
        state = layer.state()
        got = torch.cat([layer(part, state=state) for part in x.split((3, 1, 1, 2), dim=1)], 1)
        for out in (got, layer(x)):
            assert_close(out, plain(x))


def test_the_cache_is_rank_and_rotary_numbers_a_token():
    spec = ROTARY
    assert spec.cached_widths == ((1, 5 + 4),)
    assert spec.cost(1).state_numbers == 9
    layer = built(spec).float()
    state = layer.state(Static(8))
    with torch.no_grad():
        layer(torch.zeros(1, 8, D_MODEL), state=state)
    assert state.nbytes == spec.state_bytes(8) == 8 * 9 * 4


def test_what_it_costs():
    layer = built(DEEP)
    q = D_MODEL * 6 + 6 + 6 + 6 * HEADS * 7 + HEADS * 7
    kv = D_MODEL * 9 + 9 + 5 + 5 * HEADS * 5
    out = HEADS * 2 * D_MODEL + D_MODEL
    assert sum(p.numel() for p in layer.parameters()) == DEEP.cost(1).parameters == q + kv + out
    linear_flops = 2 * 7 * (D_MODEL * 6 + 6 * 14 + D_MODEL * 9 + 5 * 10 + 4 * D_MODEL)
    assert DEEP.cost(7).flops == linear_flops + 2 * HEADS * 7 * 7 * (7 + 2)


@pytest.mark.parametrize("sample", MLA.samples(), ids=str)
@pytest.mark.parametrize("position", [None, Rope(100.0)], ids=str)
def test_it_conforms(sample, position):
    spec = AttentionSpec(d_model=8, num_heads=2, encoder=sample, pattern=Causal())
    conform(spec if position is None else replace(spec, position=position))


def test_gradients():
    layer = built(replace(ROTARY, d_model=4))
    names = [name for name, _ in layer.named_parameters()]
    x = normal(1, 3, 4, seed=6).requires_grad_()

    def run(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 1}, "num_kv_heads=1"),
        ({"norm": HeadRMS()}, "norm="),
        ({"mixing": Alignment(8)}, "mixing="),
        ({"kernel": Elu()}, "kernel="),
        ({"encoder": MLA(rank=5, rotary_dim=3), "position": Rope()}, "3"),
    ],
)
def test_what_it_refuses(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(PLAIN, **change)


@pytest.mark.parametrize("size", ["rank", "rotary_dim", "value_dim", "query_rank"])
def test_widths_are_at_least_one(size):
    with pytest.raises(ConfigError, match=f"{size}=0"):
        MLA(**{"rank": 4, "rotary_dim": 2, size: 0})


def test_its_description_is_a_record_of_its_own():
    assert type(PLAIN.lower()) is LatentSoftmax


@torch.no_grad()
def test_absorbed_steps_run_on_the_decoding_kernels():
    if not library.available():
        pytest.skip(f"no native kernels: {library.why_not()}")
    encoder = MLA(rank=24, rotary_dim=8, value_dim=12)
    spec = AttentionSpec(
        d_model=32, num_heads=4, encoder=encoder, position=Rope(), pattern=Causal()
    )
    layer = drawn(Attention(spec), seed=1)
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
    state = layer.state()
    layer(x[:, :6], state=state)
    layer.impl = "native_decode"  # raises where it cannot
    steps = [layer(x[:, at : at + 1], state=state) for at in range(6, 9)]
    layer.impl = "reference"
    assert_close(torch.cat(steps, dim=1), layer(x)[:, 6:])
