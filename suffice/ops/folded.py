"""Grouped-query attention of few queries: heads that share keys become rows of one head.

torch's fused kernel reads the keys once per query head even when heads share them. For a few
queries reading the keys is the cost, so the query heads of a group are laid behind each other as
the rows of one head, and the keys are read once per group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.ops import fused, looked, matmul
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: Where,
    problem: Problem,
    parts: Parts,
) -> Tensor:
    """Return the outputs [B, H, T, E]; forward derivatives go through the products of `matmul`."""
    if not torch.compiler.is_compiling() and looked.forward():
        return matmul.attend(q, k, v, where, problem, parts)
    batch, _, queries, width = q.shape
    groups, rows = problem.num_kv_heads, problem.group * queries
    mask, empty = fused.additive(where, problem, q)
    if mask is not None:
        heads = mask.expand(mask.shape[0], problem.num_heads, queries, problem.keys)
        mask = heads.reshape(-1, groups, rows, problem.keys)
    out = F.scaled_dot_product_attention(
        fused.dense_rows(q.reshape(batch, groups, rows, width)),
        fused.dense_rows(k),
        fused.dense_rows(v),
        attn_mask=mask,
        scale=problem.scale,
    )
    out = out.reshape(batch, problem.num_heads, queries, problem.value_dim)
    return out if empty is None else out.masked_fill(empty, 0.0)


def refuses(problem: Problem) -> list[str]:
    """Refuse what fused refuses, and heads that share nothing."""
    reasons = fused.refuses(problem)
    if problem.group == 1:
        reasons.append("every query head has keys of its own: nothing to fold")
    return reasons


FOLDED = Op("folded", "fused attention, heads that share keys folded into rows", attend, refuses)
