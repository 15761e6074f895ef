"""What keeps NaN and Inf at a key from the queries that may not see it."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.finite import finite
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.where import Where


def run(
    op: Op, q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts
) -> Tensor:
    """Return what the op computes, NaN for exactly the queries that may see something non-finite.

    An op gives a hidden value the weight 0, and 0 * NaN is NaN. Where keys are hidden from some
    queries, non-finite keys are therefore taken out and the queries that may see them marked.
    """
    if problem.unrestricted or op.looks or finite(k, v):
        return op.run(q, k, v, where, problem, parts)
    return marked(op, q, k, v, where, problem, parts)


def marked(
    op: Op, q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts
) -> Tensor:
    """Return the same where some key or value is not finite."""
    bad = ~(k.isfinite().all(dim=-1) & v.isfinite().all(dim=-1))  # [B, G, S]
    k, v = (t.masked_fill(bad[..., None], 0.0) for t in (k, v))
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, q.device)
    seen = (allowed & bad.repeat_interleave(problem.group, dim=1)[:, :, None]).any(-1, keepdim=True)
    return op.run(q, k, v, where, problem, parts).masked_fill(seen, torch.nan)
