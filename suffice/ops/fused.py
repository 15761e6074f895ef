"""One call of torch's fused attention: exact, O(T) memory, forward and backward.

On a CPU that is its flash kernel; on CUDA torch picks cuDNN, FlashAttention-2 or the
memory-efficient kernel. Keys and values need one width: the narrower ones are padded with zeros.
Calls for which torch would silently leave the fused kernels are refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.ops.call import AttentionCall, MaskInputs, Restriction
from suffice.ops.op import Op, Parts, dense_rows, refuses_kernel


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, _: Parts
) -> Tensor:
    if call.triangular:
        return _sdpa(q, k, v, call, is_causal=True)
    mask, empty = additive_mask(masks, call, q)
    out = _sdpa(q, k, v, call, attn_mask=mask)
    return out if empty is None else out.masked_fill(empty, 0.0)


def attend_folded(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, _: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E]; the heads that share keys are rows of one head."""
    batch, heads, queries, width = q.shape
    groups, rows = call.num_kv_heads, call.group * queries
    mask, empty = additive_mask(masks, call, q)
    if mask is not None:
        mask = mask.expand(mask.shape[0], heads, queries, call.keys)
        mask = mask.reshape(-1, groups, rows, call.keys)
    out = _sdpa(q.reshape(batch, groups, rows, width), k, v, call, attn_mask=mask)
    out = out.reshape(batch, heads, queries, call.value_dim)
    return out if empty is None else out.masked_fill(empty, 0.0)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall, **mask: Any) -> Tensor:
    if call.value_dim != call.head_dim:
        q, k, v = of_one_width(q, k, v)
    out = F.scaled_dot_product_attention(
        dense_rows(q),
        dense_rows(k),
        dense_rows(v),
        scale=call.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        **mask,
    )
    return out if call.value_dim >= call.head_dim else out[..., : call.value_dim]


def of_one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Return q, k and v with zeros behind the narrower features."""
    wide = max(q.shape[-1], v.shape[-1])
    return tuple(F.pad(x, (0, wide - x.shape[-1])) for x in (q, k, v))


def additive_mask(masks: MaskInputs, call: AttentionCall, q: Tensor) -> Restriction:
    """Return the mask of a fused call: boolean, or float where the position adds a bias."""
    allowed, empty = masks.restrict(call, q.device)
    bias = masks.bias(call, q.device)
    if bias is None:
        return Restriction(allowed, empty)
    bias = bias.to(q.dtype)
    return Restriction(bias if allowed is None else bias.masked_fill(~allowed, -torch.inf), empty)


def refuses(call: AttentionCall) -> list[str]:
    """Refuse dropout, empty input and forward-mode differentiation."""
    reasons = refuses_kernel(call)
    if call.dropping:
        reasons.append("dropping weights makes torch leave its fused kernel")
    if call.queries * call.keys == 0:
        reasons.append("there is no query or no key")
    if call.tangents:
        reasons.append("torch's fused kernel has no forward-mode derivative")
    return reasons


def refuses_folded(call: AttentionCall) -> list[str]:
    """Refuse what fused refuses, and heads that share nothing."""
    reasons = refuses(call)
    if call.group == 1:
        reasons.append("every query head has its own keys: nothing to fold")
    return reasons


FUSED = Op("fused", "torch's fused scaled-dot-product attention", attend, refuses)
FOLDED = Op(
    "folded",
    "fused attention, heads that share keys folded into rows",
    attend_folded,
    refuses_folded,
)
