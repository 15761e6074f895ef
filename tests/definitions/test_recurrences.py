"""Recurrences, token by token and number by number, from the papers' equations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.combine import Gated
from suffice.errors import ConfigError, UnsupportedError
from suffice.kernels import Decayed, Delta
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, documents, drawn, normal, padded

HEADS, WIDTH, MODEL = 2, 3, 6
KERNELS = [
    Decayed(),
    Decayed(decays=(0.5, 1.0)),
    Decayed("token"),
    Decayed("feature"),
    Delta(),
    Delta(gated=False),
]


def built(kernel, *, impl="auto", seed=1, dtype=torch.float64, **options):
    spec = AttentionSpec(d_model=MODEL, num_heads=HEADS, pattern=Causal(), kernel=kernel, **options)
    return drawn(Attention(spec, impl=impl, dtype=dtype), seed=seed).eval()


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


def decay_of(layer, x, head, kernel):
    """The factor of each feature of a head's keys in the state, and that of the value, at x."""
    gates = layer.recurrence.gates
    if isinstance(kernel, Delta) and not kernel.gated:
        return [1.0] * WIDTH, 1.0
    if isinstance(kernel, Decayed) and kernel.per == "head":
        decay = 1.0 - 2.0 ** (-5 - head) if kernel.decays is None else kernel.decays[head]
        return [decay] * WIDTH, 1.0
    if isinstance(kernel, Decayed) and kernel.per == "feature":
        inner = gates.down_proj.weight @ x
        logits = gates.up_proj.weight @ inner + gates.up_proj.bias
        return [sigmoid(float(n)) ** (1 / 16) for n in logits[head * WIDTH :][:WIDTH]], 1.0
    step = math.log1p(math.exp(float(gates.decay_proj.weight[head] @ x + gates.step_bias[head])))
    decay = math.exp(-math.exp(float(gates.log_rate[head])) * step)
    return [decay] * WIDTH, 1.0 if isinstance(kernel, Delta) else step


def by_hand(layer, x, kernel):
    """The output of one text [T, M] by loops over tokens, heads and features."""
    rows = []
    states = torch.zeros(HEADS, WIDTH, WIDTH, dtype=torch.float64)
    taps = kernel.convolution or 1
    made = [torch.cat([p(x) for p in (layer.q_proj, layer.k_proj, layer.v_proj)], dim=-1)]
    for t in range(len(x)):
        now = made[0][t]
        if kernel.convolution:
            total = torch.zeros_like(now)
            for back in range(min(taps, t + 1)):
                total += layer.recurrence.convolution[:, taps - 1 - back] * made[0][t - back]
            now = total * torch.sigmoid(total)
        q, k, v = now.view(3, HEADS, WIDTH)
        heads = []
        for head in range(HEADS):
            key, query, value = k[head].clone(), q[head].clone(), v[head].clone()
            decay, step = decay_of(layer, x[t], head, kernel)
            if isinstance(kernel, Delta):
                key, query = (y / math.sqrt(float(y @ y) + 1e-6) for y in (key, query))
            for d in range(WIDTH):
                states[head, d] *= decay[d]
            if isinstance(kernel, Delta):
                share = sigmoid(float(layer.recurrence.gates.beta_proj.weight[head] @ x[t]))
                value = share * (value - key @ states[head])
            states[head] += torch.outer(key, step * value)
            heads.append(query @ states[head] / math.sqrt(WIDTH))
        rows.append(layer.o_proj(torch.cat(heads)))
    return torch.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("convolution", [None, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_it_is_the_formula(kernel, convolution, impl):
    kernel = replace(kernel, convolution=convolution)
    layer = built(kernel, impl=impl)
    x = normal(1, 7, MODEL, seed=3)
    assert_close(layer(x)[0], by_hand(layer, x[0], kernel))


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("data", ["plain", "padded", "packed", "both"])
def test_chunks_are_steps(kernel, data):
    """Outputs and gradients past several chunks, where padding and documents lie anywhere."""
    x, where = normal(2, 150, MODEL, seed=4), {}
    if data in ("padded", "both"):
        where["valid"] = padded(2, 150, "inside")
    if data in ("packed", "both"):
        where["segments"] = documents(2, 150) // 9
    found = []
    for impl in ("auto", "reference"):
        layer = built(kernel, impl=impl)
        own = x.clone().requires_grad_()
        out = layer(own, **where)
        gradients = torch.autograd.grad(out.square().sum(), [own, *layer.parameters()])
        found.append([out.detach(), *gradients])
    for got, want in zip(*found, strict=True):
        assert_close(got, want, n=150)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [*KERNELS, Delta(convolution=4)], ids=repr)
def test_streams_in_pieces_with_rows_that_move(kernel):
    layer, x = built(kernel), normal(3, 140, MODEL, seed=5)
    valid = padded(3, 140, "inside", seed=2)
    state, parts, at, order = layer.state(), [], 0, torch.arange(3)
    want = layer(x, valid=valid)
    for length in (1, 2, 70, 1, 3, 63):
        piece = slice(at, at + length)
        parts.append(layer(x[order, piece], valid=valid[order, piece], state=state))
        assert_close(parts[-1], want[order, piece])
        moved = torch.tensor([2, 0, 1])
        state.select(moved)
        order, at = order[moved], at + length
    assert at == 140
    assert state.nbytes - state.places.nbytes == layer.spec.cost(1).state_fixed * 8 * 3
    assert sum(p.numel() for p in layer.parameters()) == layer.spec.cost(1).parameters
    assert not state.can_drop(1)
    with pytest.raises(
        ConfigError, match=r"drop_last\(1\) of 140 positions in the state of a recurrence"
    ):
        state.drop_last(1)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [Decayed("token"), Decayed("feature"), Delta()], ids=repr)
@pytest.mark.parametrize("strength", [1e-4, 5.0, 300.0])
def test_any_decay_stays_finite_and_right(kernel, strength):
    """Decays of e^-300 a token, and of nearly none, over several chunks in float32."""
    layers = [built(kernel, dtype=torch.float32), built(kernel, impl="reference")]
    for layer in layers:
        gates = layer.recurrence.gates
        if kernel.by_features:
            gates.up_proj.bias.fill_(-strength)
        else:
            gates.log_rate.fill_(math.log(strength))
    x = normal(2, 200, MODEL, seed=6)
    got, want = layers[0](x.float()), layers[1](x)
    assert got.isfinite().all()
    assert_close(got, want, n=200)


@torch.no_grad()
def test_the_delta_rule_recalls_what_a_key_was_last_given():
    """Keys that are orthogonal, shares of 1: the state gives each key its last value."""
    from suffice.ops import recurrence

    keys = torch.eye(4, dtype=torch.float64)[[0, 1, 0, 2, 1]][None, None]
    values = torch.arange(1.0, 11.0, dtype=torch.float64).view(1, 1, 5, 2)
    share = torch.ones(1, 1, 5, 1, dtype=torch.float64)
    data = recurrence.Sequence(keys, keys, values, None, share, None)
    start = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    for run in (recurrence.stepwise, recurrence.chunked):
        _, state = run(data, start)
        assert_close(
            state[0, 0], torch.stack([values[0, 0, n] for n in (2, 4, 3)] + [start[0, 0, 0]])
        )


@torch.no_grad()
def test_heads_are_normalised_before_the_gate():
    kernel, combine = Decayed(), Gated(activation="silu", norm=True)
    layer, plain = built(kernel, combine=combine), built(kernel)
    weights = layer.state_dict()
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    plain.o_proj.weight.copy_(torch.eye(MODEL))
    plain.o_proj.bias.zero_()
    x = normal(1, 5, MODEL, seed=7)
    heads = plain(x)[0].view(5, HEADS, WIDTH)
    normalised = (
        heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.head_norm.weight
    )
    gates = layer.gate_proj(x)[0]
    assert_close(layer(x)[0], layer.o_proj(normalised.flatten(1) * gates * gates.sigmoid()))


@pytest.mark.parametrize(
    "kernel", [Decayed("token", convolution=2), Delta(convolution=2)], ids=repr
)
def test_gradients_are_those_of_small_differences(kernel):
    layer = built(kernel)
    x = normal(1, 5, MODEL, seed=8).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decayed("row"), "per='head', 'token' or 'feature'"),
        (lambda: Decayed(decays=(0.0,)), r"a number in \(0, 1\] a head"),
        (lambda: Decayed("token", decays=(0.5,)), "decays go with per='head'"),
        (lambda: Delta(convolution=1), "a convolution of at least 2 tokens"),
        (lambda: built(Decayed(decays=(0.5,))), "has 1 decays for 2 heads"),
        (
            lambda: AttentionSpec(d_model=6, num_heads=2, kernel=Delta(), pattern=Full()),
            "give Causal",
        ),
        (lambda: built(Delta(), impl="matmul"), "which has no weights of pairs"),
        (lambda: built(Delta(), impl="scan"), "'recurrence', 'reference'"),
        (lambda: Gated(activation="relu"), "activation='sigmoid' or 'silu'"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((ConfigError, UnsupportedError), match=message):
        make()
