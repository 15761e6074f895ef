"""Forgetting attention, arXiv:2503.02130, equations 3 to 5, one query and one head at a time."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from suffice import Attention, AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import Forgetting, HeadRMS, forgetting
from suffice.errors import ConfigError
from suffice.kernels import Elu, Softmax
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal, Full, Window
from suffice.positions import Rope
from suffice.testing import assert_close, bits, conform, drawn
from tests.kernels.own import Cosine, ReluSquared

WIDTH, HEADS, GROUPS, LENGTH = 12, 4, 2, 7
CHUNKS = ((0, 3), (3, 4), (4, 7))


def layer_of(**axes):
    axes = {"num_kv_heads": GROUPS, "pattern": Causal(), "encoder": Forgetting()} | axes
    spec = AttentionSpec(d_model=WIDTH, num_heads=HEADS, **axes)
    return drawn(Attention(spec, dtype=torch.float64), seed=1).eval()


def tokens(batch=1, length=LENGTH):
    draws = torch.Generator().manual_seed(0)
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=draws)


def by_formula(layer, x):
    """Return the layer's output for one text x [T, M]."""
    width, kernel = WIDTH // HEADS, layer.spec.kernel
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
            if isinstance(kernel, Softmax):
                powers = [math.exp(score) for score in scores]
                sink = math.exp(float(layer.sinks[head])) if kernel.sink else 0.0
                weights = [power / (sum(powers) + sink) for power in powers]
            else:
                weights = [max(score, 0.0) ** 2 / (t + 1) for score in scores]
            for s, weight in enumerate(weights):
                heads[t, mine] += weight * v[s, theirs]
    return layer.o_proj(heads)


KERNELS = (Softmax(), Softmax(sink=True), ReluSquared())


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_it_is_the_formula_beside_every_kernel_of_plain_products(kernel):
    layer, x = layer_of(kernel=kernel), tokens()
    want = by_formula(layer, x[0])
    assert_close(layer(x)[0], want)
    state = layer.state()
    assert_close(torch.cat([layer(x[:, a:b], state=state) for a, b in CHUNKS], dim=1)[0], want)


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
@pytest.mark.parametrize("memory", [Dynamic(), Rolling(4)], ids=repr)
def test_chunks_read_the_gates_of_what_is_cached(memory):
    layer, x = layer_of(), tokens(2, 13)
    state = layer.state(memory)
    parts = [layer(x[:, a:b], state=state) for a, b in ((0, 5), (5, 6), (6, 7), (7, 13))]
    near = (
        memory.window and torch.ones(13, 13, dtype=torch.bool).triu(1 - memory.window)[None, None]
    )
    assert_close(torch.cat(parts, dim=1), layer(x, mask=near))


def test_runs_of_queries_change_nothing(monkeypatch):
    monkeypatch.setattr(forgetting, "MOST_FORGOTTEN", {torch.float64: 0.3})
    monkeypatch.setattr(forgetting, "SHORTEST_RUN", 2)
    layer, x, mask = (
        layer_of(kernel=Softmax(sink=True)),
        tokens(2, 13),
        bits(2, HEADS, 13, 13, seed=1),
    )
    assert len(layer.spec.encoder.runs(13, layer.spec.encoder.cached(layer, x))) > 2
    got, masked = layer(x), layer(x, mask=mask)
    conform(layer.spec, length=9)
    for memory in (Dynamic(), Rolling(4)):
        test_chunks_read_the_gates_of_what_is_cached(memory)
    monkeypatch.undo()
    assert_close(got, layer(x))
    assert_close(masked, layer(x, mask=mask))


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


def long_text(layer, x):
    """Return the outputs for one text x [T, M] of float64 from differences of sums."""
    q, k, v, f = (getattr(layer, f"{name}_proj")(x) for name in "qkvf")
    sums, heads = F.logsigmoid(f).cumsum(dim=0), []
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    for head in range(HEADS):
        group = head * GROUPS // HEADS
        q_h, k_h, v_h = (
            y.unflatten(1, (-1, WIDTH // HEADS))[:, i]
            for y, i in ((q, head), (k, group), (v, group))
        )
        scores = q_h @ k_h.T / math.sqrt(WIDTH // HEADS) + sums[:, group, None] - sums[:, group]
        heads.append(scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ v_h)
    return layer.o_proj(torch.cat(heads, dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_long_texts_that_forget_fast_keep_their_digits(dtype):
    layer, x = layer_of().to(dtype), tokens(2, 900).to(dtype)
    with torch.no_grad():
        layer.f_proj.weight *= 0.1
        layer.f_proj.bias.copy_(torch.tensor([-45.0, -1.5]))  # to sums of -40,500 and -1,500
    exact, valid, state = deepcopy(layer).double(), bits(2, 900, seed=3), layer.state()
    want = torch.stack([long_text(exact, row) for row in x.double()])
    with torch.no_grad():
        ends = (0, 400, 860, *range(861, 901))
        chunks = torch.cat([layer(x[:, a:b], state=state) for a, b in pairwise(ends)], dim=1)
        padded = layer(x, valid=valid)
        of_real = [long_text(exact, row[real]) for row, real in zip(x.double(), valid, strict=True)]
    rounding = {"n": 100} if dtype is torch.float32 else {}
    for got, right in ((chunks, want), (padded[valid], torch.cat(of_real)), (layer(x), want)):
        assert_close(got, right, **rounding)
    if dtype is torch.float32:
        got.square().sum().backward()
        want.square().sum().backward()
        grads = [torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (layer, exact)]
        assert_close(*grads, n=100)


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
        {"kernel": Softmax(cap=2.0)},
        {"kernel": Cosine()},
        {"scale": 0.0},
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
