"""Mamba-2's layer, arXiv:2405.21060: few queries and keys for many values, token by token."""

from __future__ import annotations

import math

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.combine import Concat, Gated, NormedGate
from suffice.encoders import MultiValue
from suffice.errors import ConfigError
from suffice.kernels import Decayed, Delta, Softmax
from suffice.patterns import Causal
from suffice.testing import assert_close, documents, drawn, normal, padded

MODEL, HEADS, KEY, VALUE = 6, 4, 3, 5
MAMBA = Decayed("token", convolution=3, convolution_bias=True, skip=True)


def built(groups, *, kernel=MAMBA, impl="auto", combine=None):
    spec = AttentionSpec(
        d_model=MODEL,
        num_heads=HEADS,
        head_dim=KEY,
        pattern=Causal(),
        encoder=MultiValue(groups=groups, value_dim=VALUE),
        kernel=kernel,
        combine=combine or NormedGate(groups=groups, eps=1e-3),
        bias=False,
        scale=1.0,
    )
    return drawn(Attention(spec, impl=impl, dtype=torch.float64), seed=2).eval()


def silu(x):
    return x / (1.0 + math.exp(-x))


def convolved(layer, x, t):
    """C, B and x of token t: each feature of the three maps, summed with two tokens before."""
    made = torch.cat([p(x) for p in (layer.q_proj, layer.k_proj, layer.v_proj)], dim=-1)
    channels = []
    for channel in range(made.shape[1]):
        total = float(layer.recurrence.convolution_bias[channel])
        for back in range(min(3, t + 1)):
            total += float(
                layer.recurrence.convolution[channel, 2 - back] * made[t - back, channel]
            )
        channels.append(silu(total))
    return channels


def by_hand(layer, x, groups):
    gates, rows = layer.recurrence.gates, []
    state = [[[0.0] * VALUE for _ in range(KEY)] for _ in range(HEADS)]
    for t in range(len(x)):
        channels, y = convolved(layer, x, t), []
        for h in range(HEADS):
            group = h // (HEADS // groups)
            c = channels[group * KEY :][:KEY]
            b = channels[(groups + group) * KEY :][:KEY]
            v = channels[2 * groups * KEY + h * VALUE :][:VALUE]
            raw = float(gates.decay_proj.weight[h] @ x[t] + gates.step_bias[h])
            step = math.log1p(math.exp(raw))
            decay = math.exp(-math.exp(float(gates.log_rate[h])) * step)
            for e in range(VALUE):
                for n in range(KEY):
                    state[h][n][e] = decay * state[h][n][e] + step * b[n] * v[e]
                skipped = float(layer.recurrence.skip[h]) * v[e]
                y.append(sum(c[n] * state[h][n][e] for n in range(KEY)) + skipped)
        gated = [silu(float(z)) * one for z, one in zip(layer.gate_proj(x[t]), y, strict=True)]
        part = len(gated) // groups
        for start in range(0, len(gated), part):
            square = sum(one**2 for one in gated[start : start + part]) / part
            for at in range(start, start + part):
                gated[at] *= float(layer.gated_norm.weight[at]) / math.sqrt(square + 1e-3)
        rows.append(layer.o_proj.weight @ torch.tensor(gated, dtype=torch.float64))
    return torch.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_it_is_the_formula(groups, impl):
    layer, x = built(groups, impl=impl), normal(1, 7, MODEL, seed=3)
    assert_close(layer(x)[0], by_hand(layer, x[0], groups))


@torch.no_grad()
def test_shared_keys_are_equal_keys():
    """Heads that share a query and a key are heads with equal ones."""
    layer = built(2, kernel=Delta(convolution=2), combine=Gated(norm=True))
    every = built(HEADS, kernel=Delta(convolution=2), combine=Gated(norm=True))
    state, keys = layer.state_dict(), 2 * KEY
    twice = torch.arange(keys).view(2, KEY).repeat_interleave(2, dim=0).flatten()
    for name in ("q_proj.weight", "k_proj.weight"):
        state[name] = state[name][twice]
    taps = state["recurrence.convolution"]
    state["recurrence.convolution"] = torch.cat([taps[twice], taps[keys + twice], taps[2 * keys :]])
    every.load_state_dict(state)
    x = normal(2, 70, MODEL, seed=4)
    assert_close(layer(x), every(x), n=70)


@pytest.mark.parametrize("data", ["plain", "padded", "packed"])
def test_chunks_are_steps_and_gradients_too(data):
    x, where = normal(2, 150, MODEL, seed=4), {}
    if data == "padded":
        where["valid"] = padded(2, 150, "inside")
    if data == "packed":
        where["segments"] = documents(2, 150) // 9
    found = []
    for impl in ("auto", "reference"):
        layer, own = built(2, impl=impl), x.clone().requires_grad_()
        out = layer(own, **where)
        gradients = torch.autograd.grad(out.square().sum(), [own, *layer.parameters()])
        found.append([out.detach(), *gradients])
    for got, want in zip(*found, strict=True):
        assert_close(got, want, n=150)


@torch.no_grad()
def test_streams_in_pieces():
    layer, x = built(2), normal(2, 80, MODEL, seed=5)
    valid, state = padded(2, 80, "inside"), None
    want, state = layer(x, valid=valid), layer.state()
    pieces = zip(
        x.split([1, 2, 70, 1, 6], dim=1), valid.split([1, 2, 70, 1, 6], dim=1), strict=True
    )
    assert_close(torch.cat([layer(a, valid=b, state=state) for a, b in pieces], dim=1), want)
    assert state.nbytes - state.places.nbytes == layer.spec.cost(1).state_fixed * 8 * 2


@torch.no_grad()
def test_its_weights_are_what_outputs_take_of_values():
    """With values of the positions themselves, heads are rows of the weights."""
    layer, x = built(2, combine=Concat()), normal(1, 6, MODEL, seed=6)
    weights = layer.weights(x)[0]
    assert_close(weights.triu(1), torch.zeros_like(weights))
    channels = torch.tensor([convolved(layer, x[0], t) for t in range(6)], dtype=torch.float64)
    values = channels[:, 4 * KEY :].view(6, HEADS, VALUE).transpose(0, 1)
    assert_close(layer.o_proj((weights @ values).transpose(0, 1).flatten(1)), layer(x)[0])


def test_counts_are_of_its_own_modules():
    for groups in (1, 2):
        layer = built(groups)
        assert layer.spec.cost(9).parameters == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kernel": Softmax()}, r"cannot have kernel=Softmax\(.*give Decayed\(\) or Delta\(\)"),
        ({"num_heads": 3}, "num_heads=3.*that 2 divides"),
        ({"num_kv_heads": 2}, "num_kv_heads=2"),
        ({"combine": NormedGate(groups=7)}, "groups do not divide the 20 features"),
    ],
)
def test_what_does_not_go_together_is_refused(change, told):
    sizes = {"d_model": 12, "num_heads": HEADS, "head_dim": KEY, "pattern": Causal()}
    parts = {"encoder": MultiValue(groups=2, value_dim=VALUE), "kernel": MAMBA}
    with pytest.raises(ConfigError, match=told):
        AttentionSpec(**sizes | parts | change)


def test_values_of_the_axes_are_checked():
    with pytest.raises(ConfigError, match="whole numbers of at least 1"):
        MultiValue(groups=0)
    with pytest.raises(ConfigError, match="groups of at least 1 and eps above 0"):
        NormedGate(groups=0)
    with pytest.raises(ConfigError, match="a bias goes with a convolution"):
        Decayed("token", convolution_bias=True)
