"""Whole language models in float64, written from their papers' formulas over a state dict.

One text [T] at a time, position by position where order matters; no module of the package.
"""

from __future__ import annotations

import math

import torch


def layer_norm(x, state, name, eps):
    mean = x.sum(dim=1, keepdim=True) / x.shape[1]
    variance = ((x - mean) ** 2).sum(dim=1, keepdim=True) / x.shape[1]
    return (x - mean) / torch.sqrt(variance + eps) * state[f"{name}.weight"] + state[f"{name}.bias"]


def rms_norm(x, state, name, eps):
    return (
        x
        / torch.sqrt((x**2).sum(dim=1, keepdim=True) / x.shape[1] + eps)
        * (state[f"{name}.weight"])
    )


def linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0.0)


def turned(x, theta=10_000.0):
    """Rotary positions of one head [T, D], feature i paired with i + D / 2."""
    out = x.clone()
    half = x.shape[1] // 2
    for p in range(len(x)):
        for i in range(half):
            angle = p * theta ** (-2 * i / x.shape[1])
            a, b = x[p, i], x[p, i + half]
            out[p, i] = a * math.cos(angle) - b * math.sin(angle)
            out[p, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def attention(x, state, name, heads, kv_heads, turn):
    q, k, v = (linear(x, state, f"{name}.{part}_proj") for part in "qkv")
    width = q.shape[1] // heads
    outputs = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        group = head // (heads // kv_heads)
        shared = slice(group * width, (group + 1) * width)
        rows = []
        queries, keys = turn(q[:, columns]), turn(k[:, shared])
        for t in range(len(x)):
            powers = torch.exp(keys[: t + 1] @ queries[t] / math.sqrt(width))
            rows.append(powers / powers.sum() @ v[: t + 1, shared])
        outputs.append(torch.stack(rows))
    return linear(torch.cat(outputs, dim=1), state, f"{name}.o_proj")


def gpt2(state, tokens, *, depth, heads, eps):
    """Learned positions, layer norms before each half, GELU, the head tied to the tokens."""
    x = state["embedding.tokens.weight"][tokens]
    x = x + state["embedding.positions.weight"][: len(tokens)]
    for n in range(depth):
        block = f"blocks.{n}"
        normed = layer_norm(x, state, f"{block}.attention_norm", eps)
        x = x + attention(normed, state, f"{block}.attention", heads, heads, lambda part: part)
        up = linear(layer_norm(x, state, f"{block}.mlp_norm", eps), state, f"{block}.mlp.up")
        gelu = 0.5 * up * (1.0 + torch.erf(up / math.sqrt(2.0)))
        x = x + linear(gelu, state, f"{block}.mlp.down")
    return layer_norm(x, state, "norm", eps) @ state["embedding.tokens.weight"].T


def llama(state, tokens, *, depth, heads, kv_heads, eps):
    """Rotary positions, RMS norms, shared key/value heads, SwiGLU, a head of its own."""
    x = state["embedding.tokens.weight"][tokens]
    for n in range(depth):
        block = f"blocks.{n}"
        normed = rms_norm(x, state, f"{block}.attention_norm", eps)
        x = x + attention(normed, state, f"{block}.attention", heads, kv_heads, turned)
        normed = rms_norm(x, state, f"{block}.mlp_norm", eps)
        gate = linear(normed, state, f"{block}.mlp.gate")
        hidden = gate / (1.0 + torch.exp(-gate)) * linear(normed, state, f"{block}.mlp.up")
        x = x + linear(hidden, state, f"{block}.mlp.down")
    return rms_norm(x, state, "norm", eps) @ state["head.weight"].T
