"""The specification: attention in float64, as the formula says it.

Every other op must equal this one within rounding. It is written to be read, not to be fast.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.ops import features
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def weights_of_rows(q: Tensor, k: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the weights [B, H, T, S] in float64; a query that sees no key has weights 0."""
    if not problem.kernel.weighs_pairs:
        return features.weights(q.double(), k.double(), where, problem, parts.features)
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, q.device)
    allowed = allowed.expand(q.shape[0], q.shape[1], problem.queries, problem.keys)
    scores = problem.scale * (q.double() @ _per_head(k, problem).transpose(-1, -2))
    bias = where.bias(problem, q.device)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~allowed, -torch.inf)
    if not scores.numel():
        return scores
    peak = scores.detach().amax(dim=-1, keepdim=True)
    powers = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total.masked_fill(total == 0.0, 1.0)


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    weights = parts.drop(weights_of_rows(q, k, where, problem, parts))
    return (weights @ _per_head(v, problem)).to(q.dtype)


def _per_head(x: Tensor, problem: Problem) -> Tensor:
    return x.double().repeat_interleave(problem.group, dim=1)


def refuses(problem: Problem) -> list[str]:  # noqa: ARG001 - of nothing
    """Refuse nothing."""
    return []


REFERENCE = Op("reference", "in float64 as the formula says, the specification", attend, refuses)
