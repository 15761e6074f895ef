"""The specification: softmax attention row by row in float64.

Every other op must equal this one within rounding. It is written to be read, not to be fast: one
query position at a time, only the keys it may see enter the sums, so whatever lies at a masked
position (NaN included) has no influence.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.ops.problem import Drop, Op, Problem
from suffice.ops.where import Where


def rows(q: Tensor, k: Tensor, where: Where, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the weights [B, H, T, S] in float64 and where they are allowed."""
    k = k.to(torch.float64).repeat_interleave(problem.group, dim=1)
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, q.device)
    allowed = allowed.expand(q.shape[0], q.shape[1], problem.queries, problem.keys)
    scores = torch.einsum("bhtd,bhsd->bhts", q.to(torch.float64) * problem.scale, k)
    scores = torch.where(allowed, scores, -torch.inf)
    peak = scores.detach().amax(dim=-1, keepdim=True) if problem.keys else scores.sum(-1, True)
    peak = torch.where(torch.isfinite(peak), peak, 0.0)
    powers = torch.where(allowed, (scores - peak).exp(), 0.0)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / torch.where(total == 0.0, 1.0, total), allowed


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, drop: Drop) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    weights, allowed = rows(q, k, where, problem)
    weights = drop(weights)
    values = v.to(torch.float64).repeat_interleave(problem.group, dim=1)
    outputs = [
        torch.where(allowed[:, :, t, :, None], weights[:, :, t, :, None] * values, 0.0).sum(dim=2)
        for t in range(problem.queries)
    ]
    if not outputs:
        return q.new_zeros(*q.shape[:3], problem.value_dim)
    return torch.stack(outputs, dim=2).to(q.dtype)


def refuses(problem: Problem) -> list[str]:  # noqa: ARG001 - the specification computes all
    """Refuse nothing."""
    return []


REFERENCE = Op("reference", "row by row in float64, the specification", attend, refuses)
