"""Plain Python for the definitions: lists of floats and loops, nothing of the library.

A matrix is a list of rows. `see(t, s)` says whether query t may read key s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

from suffice import Attention
from suffice.testing import drawn

Matrix = list[list[float]]
See = Callable[[int, int], bool]
Weigh = Callable[[list[float], list[float]], float]


def everything(t: int, s: int) -> bool:
    return True


def up_to_self(t: int, s: int) -> bool:
    return s <= t


def causal(see: See) -> See:
    return lambda t, s: s <= t and see(t, s)


def visible(see: See, queries: int, keys: int) -> list[list[bool]]:
    """The table of who sees whom; the queries stand last among the keys."""
    past = keys - queries
    return [[see(past + t, s) for s in range(keys)] for t in range(queries)]


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


def weighted_head(
    q: Matrix, k: Matrix, v: Matrix, see: See, weigh: Weigh, least: float = 0.0
) -> Matrix:
    """The mean of the values a query sees, each weighed by a kernel of its query and key.

    least: the smallest magnitude the sum of the weights is taken for.
    """
    out = []
    for t, query in enumerate(q):
        seen = [s for s in range(len(k)) if see(t, s)]
        shares = [weigh(query, k[s]) for s in seen]
        total = math.fsum(shares)
        total = math.copysign(max(abs(total), least), total)
        pairs = list(zip(shares, seen, strict=True))
        sums = [math.fsum(w * v[s][e] for w, s in pairs) for e in range(len(v[0]))]
        out.append([number / total for number in sums] if seen else sums)
    return out


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
    see: See | list[See] = everything,
    num_kv_heads: int | None = None,
    scale: float | None = None,
    weigh: Weigh | None = None,
    least: float = 0.0,
) -> Matrix:
    """Cut Q, K and V into heads, attend in each, join, and map by W_O.

    see: one for all heads, or a list of one for each. weigh: a kernel in place of exp(scale q k).
    """
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    group = num_heads // (num_kv_heads or num_heads)
    sees = see if isinstance(see, list) else [see] * num_heads
    heads = []
    for h in range(num_heads):
        parts = [columns(x, i, head_dim) for x, i in ((q, h), (k, h // group), (v, h // group))]
        if weigh is None:
            heads.append(head(*parts, sees[h], scale))
        else:
            heads.append(weighted_head(*parts, sees[h], weigh, least))
    return linear(joined(heads), layer.o_proj)


def self_attention(
    layer: Attention,
    x: Matrix,
    see: See | list[See] = everything,
    *,
    weigh: Weigh | None = None,
    least: float = 0.0,
) -> Matrix:
    """The output for one row of a layer with maps for Q, K and V."""
    spec = layer.spec
    q, k, v = (linear(x, part) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    return attention(
        layer,
        q,
        k,
        v,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=len(q[0]) // spec.num_heads,
        see=see,
        weigh=weigh,
        least=least,
    )


def outputs(layer: Attention, x: torch.Tensor, see=everything, **kernel) -> torch.Tensor:
    """`self_attention` of each row of a batch."""
    return tensor([self_attention(layer, row, see, **kernel) for row in x.tolist()])


def gradients_agree(layer: Attention, x: torch.Tensor) -> bool:
    """Whether autograd gives the finite differences, for x and every parameter."""
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    inputs = [t.detach().clone().requires_grad_() for t in (x, *values)]
    return gradcheck(run, inputs, fast_mode=True)


def tensor(batch: list[Matrix]) -> torch.Tensor:
    return torch.tensor(batch, dtype=torch.float64)
