"""Alignments as loops: V'_t = sum over s of W[t, s] V_s + b_t, then attention as always."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from suffice import Attention

from .loops import Matrix, attention, everything, linear, tensor, up_to_self

Map = Callable[[int, int], float]
Offset = Callable[[int], float]


def mixed(v: Matrix, maps: list[Map], offsets: list[Offset], groups: int) -> Matrix:
    """Each head of the values by its own map, or all by one."""
    width, out = len(v[0]) // groups, []
    for t in range(len(v)):
        row = []
        for column in range(len(v[0])):
            which = column // width if len(maps) > 1 else 0
            terms = (maps[which](t, s) * v[s][column] for s in range(len(v)))
            row.append(math.fsum(terms) + offsets[which](t))
        out.append(row)
    return out


def definition(layer: Attention, x: Matrix, memory: Matrix, maps, offsets) -> Matrix:
    """The output for one row of a layer whose values go through these maps."""
    spec = layer.spec
    q = linear(x, layer.q_proj)
    width = len(q[0]) // spec.num_heads
    k = linear(memory, layer.k_proj) if hasattr(layer.k_proj, "weight") else memory
    v = linear(memory, layer.v_proj) if hasattr(layer.v_proj, "weight") else memory
    v = [row[: spec.kv_heads * width] for row in v]
    return attention(
        layer,
        q,
        k,
        mixed(v, maps, offsets, spec.kv_heads),
        num_heads=spec.num_heads,
        num_kv_heads=spec.kv_heads,
        head_dim=width,
        see=up_to_self if spec.pattern.causal else everything,
    )


def outputs(layer: Attention, x: torch.Tensor, form, memory: torch.Tensor | None = None):
    """`definition` of each row; form(layer) gives the maps and the offsets."""
    maps, offsets = form(layer)
    memory = x if memory is None else memory
    pairs = zip(x.tolist(), memory.tolist(), strict=True)
    return tensor([definition(layer, r, m, maps, offsets) for r, m in pairs])
