"""torch's scaled_dot_product_attention: causal, with a boolean mask, or neither."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from benchmarks.contest import Side, timed
from benchmarks.exact import check, rows_of
from suffice.ops import AttentionCall


def side(
    inputs: tuple[Tensor, ...],
    problem: AttentionCall,
    *,
    masked: bool = False,
    backward: bool = False,
) -> Side:
    """Return SDPA on q, k, v: is_causal for a causal problem, or its pattern as a mask.

    The mask is made before anything is timed.
    """
    mask = problem.pattern.mask(problem.queries, problem.keys) if masked else None
    if mask is not None:
        mask = mask[None] if mask.dim() == 3 else mask[None, None]
    causal = not masked and problem.pattern.causal

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    exact = partial(rows_of, problem=problem)
    return Side(
        name="SDPA",
        call=timed(compute, inputs, backward=backward),
        check=partial(check, compute, exact, inputs, backward=backward, n=problem.keys),
    )
