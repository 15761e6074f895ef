"""Forgetting attention, arXiv:2503.02130, equations 3 to 5, one query and one head at a time."""

from __future__ import annotations

import math

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import Forgetting, HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Elu, Softmax
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal, Full, Window
from suffice.positions import Rope
from suffice.testing import assert_close, conform, drawn
from tests.kernels.own import Entmax15, ReluSquared

WIDTH, HEADS, GROUPS, LENGTH = 12, 4, 2, 7


def layer_of(**axes):
    axes = {"num_kv_heads": GROUPS, "pattern": Causal(), "encoder": Forgetting()} | axes
    spec = AttentionSpec(d_model=WIDTH, num_heads=HEADS, **axes)
    return drawn(Attention(spec, dtype=torch.float64), seed=1).eval()


def tokens(batch=1, length=LENGTH):
    draws = torch.Generator().manual_seed(0)
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=draws)


def by_formula(layer, x):
    """Return the layer's output for one text x [T, M]."""
    width = WIDTH // HEADS
    q, k, v, f = (getattr(layer, f"{name}_proj")(x) for name in "qkvf")
    heads = torch.zeros(len(x), WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        group = head * GROUPS // HEADS
        mine = slice(head * width, (head + 1) * width)
        theirs = slice(group * width, (group + 1) * width)
        for t in range(len(x)):
            scores = []
            for s in range(t + 1):
                product = sum(
                    float(a) * float(b) for a, b in zip(q[t, mine], k[s, theirs], strict=True)
                )
                gates = [1 / (1 + math.exp(-float(f[i, group]))) for i in range(s + 1, t + 1)]
                scores.append(product / math.sqrt(width) + sum(map(math.log, gates)))
            weights = [math.exp(score) for score in scores]
            for s, weight in enumerate(weights):
                heads[t, mine] += weight / sum(weights) * v[s, theirs]
    return layer.o_proj(heads)


@torch.no_grad()
def test_it_is_the_formula():
    layer, x = layer_of(), tokens()
    assert_close(layer(x)[0], by_formula(layer, x[0]))


def test_gates_learn_from_every_later_query():
    layer, x = layer_of(), tokens()
    (layer(x)[0] * tokens()[0]).sum().backward()
    got = layer.f_proj.weight.grad.clone()
    layer.zero_grad()
    with torch.no_grad():
        step, weight, want = 1e-6, layer.f_proj.weight, torch.zeros_like(got)
        for index in [(0, 0), (1, 5)]:
            sides = []
            for sign in (1, -1):
                weight[index] += sign * step
                sides.append(float((by_formula(layer, x[0]) * x[0]).sum()))
                weight[index] -= sign * step
            want[index] = (sides[0] - sides[1]) / (2 * step)
            assert abs(float(got[index] - want[index])) < 1e-6 * max(1.0, abs(float(want[index])))


@torch.no_grad()
@pytest.mark.parametrize("kernel", [Softmax(), Entmax15()], ids=repr)
def test_the_gate_of_the_first_token_is_in_no_output(kernel):
    layer, x = layer_of(kernel=kernel), tokens()
    before = layer(x)
    layer.f_proj.register_forward_hook(
        lambda _, __, out: torch.cat([out[:, :1] - 5, out[:, 1:]], 1)
    )
    assert_close(layer(x), before)


@torch.no_grad()
@pytest.mark.parametrize("memory", [Dynamic(), Rolling(4)], ids=repr)
def test_chunks_read_the_gates_of_what_is_cached(memory):
    layer, x = layer_of(), tokens(2, 13)
    state = layer.state(memory)
    parts = [layer(x[:, a:b], state=state) for a, b in ((0, 5), (5, 6), (6, 7), (7, 13))]
    near = (
        memory.window and torch.ones(13, 13, dtype=torch.bool).triu(1 - memory.window)[None, None]
    )
    assert_close(torch.cat(parts, dim=1), layer(x, mask=near))


@torch.no_grad()
def test_padding_inside_a_row_forgets_nothing():
    layer, x = layer_of(), tokens()
    valid = torch.tensor([[True, True, False, True, False, True, True]])
    assert_close(layer(x, valid=valid)[valid], by_formula(layer, x[valid]))
    state = layer.state()
    parts = [layer(x[:, t : t + 1], valid=valid[:, t : t + 1], state=state) for t in range(LENGTH)]
    assert_close(torch.cat(parts, dim=1)[valid], by_formula(layer, x[valid]))


@torch.no_grad()
def test_documents_are_refused_as_they_would_meet_in_the_sums():
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    with pytest.raises(ConfigError, match="one document per row"):
        layer_of()(tokens(), segments=segments)


@torch.no_grad()
def test_long_sums_keep_their_bits_in_half_precision():
    exact = layer_of()
    exact.f_proj.bias.fill_(-3.0)  # sums beyond -1,000, where neighbours in bfloat16 are 8 apart
    half = layer_of().to(torch.bfloat16)
    half.load_state_dict({name: x.bfloat16() for name, x in exact.state_dict().items()})
    exact.load_state_dict({name: x.double() for name, x in half.state_dict().items()})
    x = tokens(1, 400).bfloat16()
    error = (half(x).double() - exact(x.double())).abs().max()
    assert float(error) < 0.05


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"position": Rope(), "num_kv_heads": 4, "head_dim": 4},
        {"norm": HeadRMS(), "bias": False, "scale": 0.7},
    ],
    ids=str,
)
def test_it_keeps_every_promise(axes):
    conform(layer_of(**axes).spec, length=9)


@pytest.mark.parametrize(
    "axes",
    [
        {"pattern": Full()},
        {"pattern": Window(3) & Causal()},
        {"kernel": Elu()},
        {"kernel": Softmax(sink=True)},
        {"kernel": Softmax(cap=2.0)},
        {"kernel": ReluSquared()},
        {"mixing": ToeplitzAlignment(3)},
        {"combine": Differential()},
        {"shares": 0},
    ],
    ids=str,
)
def test_what_has_no_gates_between_pairs_is_refused(axes):
    with pytest.raises(ConfigError, match=next(iter(axes))):
        layer_of(**axes)


@pytest.mark.parametrize("memory", [Rolling(4, sinks=1), Quantised()], ids=repr)
def test_memories_that_lose_gates_are_refused(memory):
    with pytest.raises(ConfigError, match="Forgetting"):
        layer_of().state(memory)


def test_other_programs_refuse_it():
    spec = preset("forgetting", WIDTH, HEADS)
    assert spec.lower() is None
    with pytest.raises(ConfigError, match="causal"):
        preset("forgetting", WIDTH, HEADS, causal=False)
