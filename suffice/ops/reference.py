"""The specification: softmax attention in float64, as the formula says it.

Every other op must equal this one within rounding. It is written to be read, not to be fast. Only
keys a query may see enter its sums: whatever lies at a masked position (NaN included) has no
influence on its output and its gradients.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from suffice.finite import finite
from suffice.ops.op import Drop, Op, weighs_no_pairs
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def weights_of_rows(q: Tensor, k: Tensor, where: Where, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the weights [B, H, T, S] in float64, and where a query may see a key (the same)."""
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, q.device)
    allowed = allowed.expand(q.shape[0], q.shape[1], problem.queries, problem.keys)
    scores = problem.scale * _products(q.double(), _per_head(k, problem), allowed)
    scores = scores.masked_fill(~allowed, -torch.inf)
    if not scores.numel():
        return scores, allowed
    peak = scores.detach().amax(dim=-1, keepdim=True)
    powers = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total.masked_fill(total == 0.0, 1.0), allowed


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, drop: Drop) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    weights, allowed = weights_of_rows(q, k, where, problem)
    return _sums(drop(weights), _per_head(v, problem), allowed).to(q.dtype)


def _per_head(x: Tensor, problem: Problem) -> Tensor:
    return x.double().repeat_interleave(problem.group, dim=1)


def _products(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """Return q_t . k_s [B, H, T, S]; pairs that are not allowed are not read."""
    if finite(k):
        return q @ k.transpose(-1, -2)
    return _by_row(allowed, lambda t, seen: (q[:, :, t, None] * _hide(k, seen)).sum(dim=-1))


def _sums(weights: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Return sum_s w_ts v_s [B, H, T, E]; values that are not allowed are not read."""
    if finite(v):
        return weights @ v
    return _by_row(allowed, lambda t, seen: (weights[:, :, t, :, None] * _hide(v, seen)).sum(dim=2))


def _by_row(allowed: Tensor, row: Callable[[int, Tensor], Tensor]) -> Tensor:
    return torch.stack([row(t, allowed[:, :, t]) for t in range(allowed.shape[2])], dim=2)


def _hide(x: Tensor, seen: Tensor) -> Tensor:
    return x.masked_fill(~seen[..., None], 0.0)


REFERENCE = Op("reference", "row by row in float64, the specification", attend, weighs_no_pairs)
