"""The models of this folder, written by hand in float64 with Standard attention."""

from __future__ import annotations

import math

import torch


def linear(x, layer):
    return x @ layer.weight.double().T + layer.bias.double()


def norm(x, layer):
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + layer.eps) * layer.weight.double() + (
        layer.bias.double()
    )


def gelu(x):
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def relu(x):
    return x * (x > 0)


def attention(x, layer, real):
    """One row [T, M]; real [T] says which keys there are."""
    heads, width = layer.spec.num_heads, x.shape[1] // layer.spec.num_heads
    q, k, v = (linear(x, part) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    outputs = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        scores = q[:, columns] @ k[:, columns].T / math.sqrt(width)
        powers = torch.exp(scores - scores.max()) * real.double()
        outputs.append(powers / powers.sum(dim=1, keepdim=True) @ v[:, columns])
    return linear(torch.cat(outputs, dim=1), layer.o_proj)


def block(x, layer, real, activation):
    def feed(x):
        return linear(activation(linear(x, layer.mlp.up)), layer.mlp.down)

    if layer.norm == "pre":
        x = x + attention(norm(x, layer.attention_norm), layer.attention, real)
        return x + feed(norm(x, layer.mlp_norm))
    x = norm(x + attention(x, layer.attention, real), layer.attention_norm)
    return norm(x + feed(x), layer.mlp_norm)


def head(x, layers, activation):
    linears = [layer for layer in layers if hasattr(layer, "weight")]
    for layer in linears[:-1]:
        x = activation(linear(x, layer))
    return linear(x, linears[-1])


def placed(x, model):
    """Tokens [T, M] with what the model adds for where they stand."""
    kind = model.config.positions
    if kind == "none":
        return x
    if kind == "sinusoidal":
        rows, width = range(len(x)), x.shape[1]
        angles = [[t / 10_000 ** (2 * (i // 2) / width) for i in range(width)] for t in rows]
        waves = [[(math.cos if i % 2 else math.sin)(a) for i, a in enumerate(r)] for r in angles]
        return x + torch.tensor(waves, dtype=torch.float64)
    table = model.positions if hasattr(model, "patches") else model.positions.weight
    return x + table[: len(x)].double()


def vit(model, image):
    """Logits of one image [C, S, S]."""
    config = model.config
    side, rows = config.patch_size, config.image_size // config.patch_size
    patches = [
        image[:, r * side : (r + 1) * side, c * side : (c + 1) * side].reshape(-1)
        for r in range(rows)
        for c in range(rows)
    ]
    x = linear(torch.stack(patches).double(), model.patches)
    if config.pooling == "class_token":
        x = torch.cat([model.class_token.double()[None], x])
    if config.pooling == "distilled":
        learned = (model.class_token, model.distillation_token)
        x = torch.cat([token.double()[None] for token in learned] + [x])
    x = placed(x, model)
    for layer in model.blocks:
        x = block(x, layer, torch.ones(len(x)), gelu)
    x = norm(x, model.norm)
    if config.pooling == "distilled":
        heads = (model.head, model.distillation_head)
        return sum(head(row, made, gelu) for row, made in zip(x, heads, strict=False)) / 2
    pooled = {"mean": x.mean(dim=0), "flatten": x.flatten(), "class_token": x[0]}
    return head(pooled[config.pooling], model.head, gelu)


def classifier(model, tokens):
    """Logits of one text [T] without padding."""
    x = placed(model.tokens.weight.double()[tokens], model)
    activation = {"relu": relu, "gelu": gelu}[model.config.activation]
    for layer in model.blocks:
        x = block(x, layer, torch.ones(len(x)), activation)
    return head(x.mean(dim=0), model.head, relu)
