"""Each form of W_A and b written out as a square, from the definition in its class."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.mixing import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    Mixing,
    RowLayout,
    ToeplitzAlignment,
    ValueMap,
)
from suffice.testing import drawn, normal

FORMS: tuple[Mixing, ...] = (
    Alignment(70),
    Alignment(70, per_head=True, bias=False),
    BandedAlignment(70, 1),
    BandedAlignment(70, 2, per_head=True),
    BandedAlignment(70, 5, bias=False),
    BandedAlignment(70, 33),
    BandedAlignment(70, 70, per_head=True),
    ToeplitzAlignment(1),
    ToeplitzAlignment(2, per_head=True),
    ToeplitzAlignment(5, bias=False),
    ToeplitzAlignment(33),
    ToeplitzAlignment(90, per_head=True),
    BlockAlignment(1),
    BlockAlignment(3, per_head=True),
    BlockAlignment(8, bias=False),
    BlockAlignment(33),
    BlockAlignment(90),
)


def built(mixing: Mixing, *, causal: bool, groups: int = 2, seed: int = 1) -> ValueMap:
    """The module in float64, each of its parameters random."""
    made = mixing.build(num_kv_heads=groups, causal=causal, device=None, dtype=torch.float64)
    return drawn(made, seed=seed)


def square(mixing: Mixing, weight: Tensor, size: int, *, causal: bool) -> Tensor:
    """W_A [size, size] of one map."""
    if isinstance(mixing, Alignment):
        dense = weight[:size, :size]
        return dense.tril() if causal else dense
    at = torch.arange(size)
    t, s = at[:, None], at[None]
    if isinstance(mixing, BlockAlignment):
        dense = weight[t % mixing.size, s % mixing.size]
        kept = t // mixing.size == s // mixing.size
    else:
        column = (s - t + mixing.width - 1).clamp(0, weight.shape[-1] - 1)
        banded = isinstance(mixing, BandedAlignment)
        dense = weight[t.expand_as(column), column] if banded else weight[column]
        kept = (t - s).abs() < mixing.width
    return torch.where(kept & (s <= t) if causal else kept, dense, 0.0)


def offsets(mixing: Mixing, bias: Tensor | None, size: int) -> Tensor:
    """b [size] of one map."""
    if bias is None:
        return torch.zeros(size).double()
    if isinstance(mixing, ToeplitzAlignment):
        return bias.expand(size)
    return bias[[t % len(bias) for t in range(size)]]


def expected(mixing: Mixing, made: ValueMap, v: Tensor, rows: RowLayout, *, causal: bool) -> Tensor:
    """V' of v [B, G, S, E]: each document alone, without its padding; zeros at padding."""
    batch, groups, keys, _ = v.shape
    out = torch.zeros_like(v)
    valid = torch.ones(batch, keys).bool() if rows.valid is None else rows.valid
    documents = torch.zeros(batch, keys) if rows.documents is None else rows.documents
    for b in range(batch):
        for number in documents[b].unique():
            at = torch.nonzero((documents[b] == number) & valid[b])[:, 0]
            for g in range(groups if len(at) else 0):
                which = g if len(made.weight) > 1 else 0
                w_a = square(mixing, made.weight[which], len(at), causal=causal)
                bias = None if made.bias is None else made.bias[which]
                mixed = w_a @ v[b, g, at] + offsets(mixing, bias, len(at))[:, None]
                out = out.index_put((torch.tensor(b), torch.tensor(g), at), mixed)
    return out


def values(batch: int, length: int, *, groups: int = 2, seed: int = 2) -> Tensor:
    """v [B, G, S, 3]."""
    return normal(batch, groups, length, 3, seed=seed)
