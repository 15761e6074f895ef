"""Softmax attention by two batched matrix products, with the weights of all pairs.

Query heads that share keys and values are folded into the rows of one product, so no key is
expanded. Keeps the T x S weights for the backward pass: for long sequences use `fused`.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths;
N = B G products of R = H / G * T rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from suffice.kernels import Softmax
from suffice.ops import reference
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import Op, Parts, is_transformed, needs_gradient


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):  # it would round scores to half
        exact = torch.promote_types(q.dtype, torch.float32)  # products of half are fp32
        if type(call.kernel) is Softmax:
            out = _softmax(q.to(exact), k.to(exact), v.to(exact), masks, call, parts)
        else:
            if call.kernel.lane == "pairs":
                weights = reference.weights_of_pairs(q.to(exact), k.to(exact), masks, call, parts)
            else:
                weights = reference.weights(q, k, masks, call, parts.features)
            weights, v = _rows(parts.drop(weights), call), v.to(exact)
            out = torch.bmm(weights, v.flatten(0, 1))
        return out.view(*q.shape[:3], call.value_dim).to(q.dtype)


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    bias = masks.bias(call, q.device)
    allowed, empty = masks.restrict(call, q.device)

    def weigh(q: Tensor, k: Tensor) -> Tensor:
        scores = _scaled(q, k.transpose(1, 2), call.scale).view(shape)
        if cap is not None:
            scores = cap * (scores / cap).tanh()
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if allowed is not None:
            scores = scores.masked_fill_(~allowed, -torch.inf)
        if parts.sinks is None:
            return scores.softmax(dim=-1)
        sinks = parts.sinks.to(scores.dtype)[:, None, None].expand(*shape[:3], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]

    shape, cap = (*q.shape[:3], call.keys), call.kernel.cap
    rows = _rows(q, call), *(x.flatten(0, 1) for x in (k, v))
    by_hand = call.kernel.plain and not call.dropping and not is_transformed()
    if by_hand and needs_gradient(*rows):
        out = _Weighed.apply(*rows, call.scale, lambda q, k: _rows(weigh(q, k), call))
    else:
        out = torch.bmm(_rows(parts.drop(weigh(*rows[:2])), call), rows[2])
    return out if empty is None else out.view(*shape[:3], v.shape[3]).masked_fill(empty, 0.0)


def _rows(x: Tensor, call: AttentionCall) -> Tensor:
    """Return x [B, H, T, W] as [N, R, W]."""
    rows = call.group * call.queries
    return x.reshape(x.shape[0] * call.num_kv_heads, rows, x.shape[-1])


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * a b, the factor inside the product."""
    unused = a.new_empty(()).expand(*a.shape[:2], b.shape[2])  # beta=0: never read
    return torch.baddbmm(unused, a, b, beta=0, alpha=scale)


class _Weighed(torch.autograd.Function):
    """Values [N, S, E] summed by weights: the backward pass keeps nothing but the weights."""

    @staticmethod
    def forward(ctx, q, k, v, scale: float, weigh: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        weights = weigh(q, k)
        out = torch.bmm(weights, v)
        ctx.scale, ctx.weigh = scale, weigh
        ctx.save_for_backward(q, k, v, weights, out)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, weights, out = ctx.saved_tensors
        if torch.is_grad_enabled():  # they will be differentiated themselves
            again = torch.bmm(ctx.weigh(q, k), v)
            return *torch.autograd.grad(again, (q, k, v), grad, create_graph=True), None, None
        with torch.autocast(grad.device.type, enabled=False):  # a backward pass may run inside
            of_scores = torch.bmm(grad, v.transpose(1, 2))
            of_scores.sub_((grad * out).sum(dim=-1, keepdim=True)).mul_(weights)
            of_q = _scaled(of_scores, k, ctx.scale)
            of_k = _scaled(of_scores.transpose(1, 2), q, ctx.scale)
            return of_q, of_k, torch.bmm(weights.transpose(1, 2), grad), None, None


MATMUL = Op(
    "matmul", "two batched products around the weights of all pairs", attend, reference.refuses
)
