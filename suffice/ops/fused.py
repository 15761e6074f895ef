"""One call of torch's fused attention: exact, O(T) memory, forward and backward.

On a CPU that is its flash kernel; on CUDA torch picks cuDNN, FlashAttention-2 or the
memory-efficient kernel. Refused is whatever would make torch leave the fused kernels unseen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.ops import matmul, op
from suffice.ops.call import AttentionCall, MaskInputs, Restriction
from suffice.ops.op import Op, Parts, weighs_no_pairs


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: MaskInputs,
    problem: AttentionCall,
    parts: Parts,
) -> Tensor:
    """Return the outputs [B, H, T, E]; forward derivatives go through the products of `matmul`."""
    if not torch.compiler.is_compiling() and op.forward():
        return matmul.attend(q, k, v, where, problem, parts)
    if problem.triangular:
        return _call(q, k, v, problem, is_causal=True)
    mask, empty = additive(where, problem, q)
    out = _call(q, k, v, problem, attn_mask=mask)
    return out if empty is None else out.masked_fill(empty, 0.0)


def _call(
    q: Tensor, k: Tensor, v: Tensor, problem: AttentionCall, **mask: Tensor | bool | None
) -> Tensor:
    return F.scaled_dot_product_attention(
        dense_rows(q),
        dense_rows(k),
        dense_rows(v),
        scale=problem.scale,
        enable_gqa=problem.group > 1,
        **mask,
    )


def additive(where: MaskInputs, problem: AttentionCall, q: Tensor) -> Restriction:
    """Return the mask of a fused call: boolean, or float where the position adds a bias."""
    allowed, empty = where.restrict(problem, q.device)
    bias = where.bias(problem, q.device)
    if bias is None:
        return Restriction(allowed, empty)
    bias = bias.to(q.dtype)
    return Restriction(bias if allowed is None else bias.masked_fill(~allowed, -torch.inf), empty)


def dense_rows(x: Tensor) -> Tensor:
    """Return x with its last axis dense: the flash kernel reads nothing else."""
    return x if x.stride(-1) == 1 else x.contiguous()


def refuses(problem: AttentionCall) -> list[str]:
    """Refuse dropout, values of another width and empty input."""
    reasons = weighs_no_pairs(problem)
    if problem.dropping:
        reasons.append("dropping weights makes torch leave its fused kernel")
    if problem.value_dim != problem.head_dim:
        reasons.append(
            f"values {problem.value_dim} wide beside keys {problem.head_dim} wide make torch "
            "leave its fused kernel"
        )
    if problem.queries * problem.keys == 0:
        reasons.append("there is no query or no key")
    return reasons


FUSED = Op("fused", "torch's fused scaled-dot-product attention", attend, refuses)


def attend_folded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: MaskInputs,
    problem: AttentionCall,
    parts: Parts,
) -> Tensor:
    """Return the outputs [B, H, T, E]; forward derivatives go through the products of `matmul`."""
    if not torch.compiler.is_compiling() and op.forward():
        return matmul.attend(q, k, v, where, problem, parts)
    batch, _, queries, width = q.shape
    groups, rows = problem.num_kv_heads, problem.group * queries
    mask, empty = additive(where, problem, q)
    if mask is not None:
        heads = mask.expand(mask.shape[0], problem.num_heads, queries, problem.keys)
        mask = heads.reshape(-1, groups, rows, problem.keys)
    out = F.scaled_dot_product_attention(
        dense_rows(q.reshape(batch, groups, rows, width)),
        dense_rows(k),
        dense_rows(v),
        attn_mask=mask,
        scale=problem.scale,
    )
    out = out.reshape(batch, problem.num_heads, queries, problem.value_dim)
    return out if empty is None else out.masked_fill(empty, 0.0)


def refuses_folded(problem: AttentionCall) -> list[str]:
    """Refuse what fused refuses, and heads that share nothing."""
    reasons = refuses(problem)
    if problem.group == 1:
        reasons.append("every query head has keys of its own: nothing to fold")
    return reasons


FOLDED = Op(
    "folded",
    "fused attention, heads that share keys folded into rows",
    attend_folded,
    refuses_folded,
)
