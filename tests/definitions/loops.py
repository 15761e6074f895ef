"""Plain Python for the definitions: lists of floats and loops, nothing of the library.

A matrix is a list of rows. `see(t, s)` says whether query t may read key s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from suffice import Attention
from suffice.testing import drawn

Matrix = list[list[float]]
See = Callable[[int, int], bool]


def everything(t: int, s: int) -> bool:
    return True


def up_to_self(t: int, s: int) -> bool:
    return s <= t


def built(spec, seed=5) -> Attention:
    """The layer in float64, each of its parameters random."""
    return drawn(Attention(spec, dtype=torch.float64), seed=seed)


def linear(x: Matrix, layer: nn.Linear) -> Matrix:
    """x W^T + b, as nn.Linear stores W: [outputs][inputs]."""
    weight = layer.weight.tolist()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [[dot(row, w) + b for w, b in zip(weight, bias, strict=True)] for row in x]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def columns(x: Matrix, index: int, width: int) -> Matrix:
    """The index-th slice of `width` columns."""
    return [row[index * width : (index + 1) * width] for row in x]


def probabilities(scores: list[float], seen: list[bool]) -> list[float]:
    """Softmax over what is seen; nothing seen, nothing given."""
    top = max((s for s, ok in zip(scores, seen, strict=True) if ok), default=0.0)
    powers = [math.exp(s - top) if ok else 0.0 for s, ok in zip(scores, seen, strict=True)]
    total = math.fsum(powers)
    return [p / total if total else 0.0 for p in powers]


def score_rows(q: Matrix, k: Matrix, see: See, scale: float) -> Matrix:
    """S = softmax(scale Q K^T), one row for each query."""
    table = []
    for t, query in enumerate(q):
        scores = [scale * dot(query, key) for key in k]
        table.append(probabilities(scores, [see(t, s) for s in range(len(k))]))
    return table


def head(q: Matrix, k: Matrix, v: Matrix, see: See, scale: float) -> Matrix:
    """S V of one head."""
    width = len(v[0])
    return [
        [math.fsum(w * v[s][e] for s, w in enumerate(row) if w) for e in range(width)]
        for row in score_rows(q, k, see, scale)
    ]


def joined(heads: list[Matrix]) -> Matrix:
    """The heads of each position side by side."""
    return [[number for part in parts for number in part] for parts in zip(*heads, strict=True)]


def attention(
    layer: Attention,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    *,
    num_heads: int,
    head_dim: int,
    see: See = everything,
    num_kv_heads: int | None = None,
    scale: float | None = None,
) -> Matrix:
    """Cut Q, K and V into heads, attend in each, join, and map by W_O."""
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    group = num_heads // (num_kv_heads or num_heads)
    heads = [
        head(
            columns(q, h, head_dim),
            columns(k, h // group, head_dim),
            columns(v, h // group, head_dim),
            see,
            scale,
        )
        for h in range(num_heads)
    ]
    return linear(joined(heads), layer.o_proj)


def tensor(batch: list[Matrix]) -> torch.Tensor:
    return torch.tensor(batch, dtype=torch.float64)
