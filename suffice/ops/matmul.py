"""Two batched products around the weights of all pairs.

Query heads that share keys and values are folded into the rows of one product, so no key is
expanded. Keeps the T x S weights for the backward pass: for long sequences use `fused`.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.ops import features
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    with torch.autocast(q.device.type, enabled=False):  # it would round scores to half
        return _attend(q, k, v, where, problem, parts)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts
) -> Tensor:
    exact = torch.promote_types(q.dtype, torch.float32)  # products and softmax of half are fp32
    if problem.kernel.weighs_pairs:
        weights, empty = _softmax(q.to(exact), k.to(exact), where, problem)
    else:
        weights, empty = features.weights(q, k, where, problem, parts.features), None
    weights = parts.drop(weights)
    groups, folded = q.shape[0] * problem.num_kv_heads, problem.group * problem.queries
    v_rows = v.to(exact).reshape(groups, problem.keys, problem.value_dim)
    out = torch.bmm(weights.reshape(groups, folded, problem.keys), v_rows)
    out = out.view(*q.shape[:3], problem.value_dim)
    if empty is not None:
        out = out.masked_fill(empty, 0.0)
    return out.to(q.dtype)


def _softmax(q: Tensor, k: Tensor, where: Where, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Return weights [B, H, T, S], and which rows see no key and weigh nothing for that."""
    batch, heads, queries, _ = q.shape
    groups, keys, folded = batch * problem.num_kv_heads, problem.keys, problem.group * queries
    q_rows = q.reshape(groups, folded, problem.head_dim)
    k_rows = k.reshape(groups, keys, problem.head_dim)
    unused = q_rows.new_empty(()).expand(groups, folded, keys)  # beta=0: never read
    scores = torch.baddbmm(unused, q_rows, k_rows.transpose(1, 2), beta=0, alpha=problem.scale)
    scores = scores.view(batch, heads, queries, keys)
    bias = where.bias(problem, q.device)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    allowed, empty = where.restrict(problem, q.device)
    if allowed is not None:
        scores = scores.masked_fill_(~allowed, -torch.inf)
    return scores.softmax(dim=-1), empty


def refuses(problem: Problem) -> list[str]:  # noqa: ARG001 - of nothing
    """Refuse nothing."""
    return []


MATMUL = Op("matmul", "two batched products around a softmax", attend, refuses)
