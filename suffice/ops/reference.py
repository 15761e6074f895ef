"""The specification: softmax attention row by row in float64.

Every other op must equal this one within rounding. It is written to be read, not to be fast: one
query position at a time, and only the keys it may see enter the sums, so whatever lies at a
masked position (NaN included) has no influence on its output and its gradients.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.ops.problem import Drop, Op, Problem, weighs_no_pairs
from suffice.ops.where import Where


def weights_of_rows(q: Tensor, k: Tensor, where: Where, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the weights [B, H, T, S] in float64, and where a query may see a key (the same)."""
    batch, heads, queries, _ = q.shape
    allowed = where.allowed(problem.pattern, queries, problem.keys, q.device)
    allowed = allowed.expand(batch, heads, queries, problem.keys)
    k = k.to(torch.float64).repeat_interleave(problem.group, dim=1)
    q = q.to(torch.float64) * problem.scale
    rows = [_row(q[:, :, t, None], k, allowed[:, :, t]) for t in range(queries)]
    weights = torch.stack(rows, dim=2) if rows else q.new_zeros(allowed.shape)
    return weights, allowed


def _row(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """Return the weights [B, H, S] of one query [B, H, 1, D]; all 0 if it sees no key."""
    keys = k.masked_fill(~seen[..., None], 0.0)
    scores = (q * keys).sum(dim=-1).masked_fill(~seen, -torch.inf)
    if not scores.numel():
        return scores
    peak = scores.detach().amax(dim=-1, keepdim=True)
    powers = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total.masked_fill(total == 0.0, 1.0)


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, drop: Drop) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    weights, allowed = weights_of_rows(q, k, where, problem)
    weights = drop(weights)
    v = v.to(torch.float64).repeat_interleave(problem.group, dim=1)
    rows = [
        (weights[:, :, t, :, None] * v.masked_fill(~allowed[:, :, t, :, None], 0.0)).sum(dim=2)
        for t in range(problem.queries)
    ]
    if not rows:
        return q.new_zeros(*q.shape[:3], problem.value_dim)
    return torch.stack(rows, dim=2).to(q.dtype)


REFERENCE = Op("reference", "row by row in float64, the specification", attend, weighs_no_pairs)
