"""The reference op: attention in float64, straight from the formula.

Every other op must equal this one within rounding. It is written to be read, not to be fast.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import Op, Parts, is_transformed


def divisor(totals: Tensor, floor: float) -> Tensor:
    """Return the divisors of weighted values, for sums of weights of any shape.

    Positive features: the sum itself, at least the least number of full relative precision; 1 where
    the sum is 0. Features of both signs: a magnitude of `floor` at least, with the sign of the sum.
    """
    if floor:
        return torch.where(totals < 0.0, totals.clamp(max=-floor), totals.clamp(min=floor))
    numbers = torch.finfo(totals.dtype)
    return totals.clamp(min=numbers.tiny / numbers.eps).masked_fill(totals == 0.0, 1.0)


def warn_of_vanished(totals: Tensor, seen: Tensor | None, floor: float = 0.0) -> None:
    """Warn on a CPU if the sums `totals` of weights vanish at queries that see a key (`seen`)."""
    if floor or not totals.is_cpu or not totals.numel():
        return
    numbers = torch.finfo(totals.dtype)
    least = numbers.tiny / numbers.eps
    if float(totals.detach().amin()) >= least:
        return
    lost = totals < least if seen is None else (totals < least) & seen
    if count := int(lost.sum()):
        warnings.warn(
            f"the products of {count} of {totals.numel()} queries with all keys vanish in "
            f"{totals.dtype}, so their outputs shrink towards 0: the norms of queries and keys are "
            "too large for these features; normalise them (norm=HeadRMS()), or use Softmax.",
            RuntimeWarning,
            stacklevel=2,
        )


def divided(sums: Tensor, floor: float, value_dim: int) -> tuple[Tensor, Tensor]:
    """Return weighted values over the sums of their weights, and those sums [..., 1].

    `sums` [..., columns]: first `value_dim` weighted values, then the sum of their weights.
    """
    totals = sums[..., value_dim : value_dim + 1]
    return sums[..., :value_dim] / divisor(totals, floor), totals


def divided_backward(
    grad: Tensor, out: Tensor, totals: Tensor, floor: float, columns: int
) -> Tensor:
    """Return the gradient [..., columns] of the sums of `divided`, from that of its outputs."""
    value_dim = out.shape[-1]
    over = divisor(totals, floor)
    of_sums = out.new_zeros(*out.shape[:-1], columns)
    torch.div(grad, over, out=of_sums[..., :value_dim])
    moved = (grad * out).sum(dim=-1, keepdim=True) / over
    of_sums[..., value_dim : value_dim + 1] = moved.neg_().masked_fill_(over != totals, 0.0)
    return of_sums


def weights(
    q: Tensor, k: Tensor, masks: MaskInputs, call: AttentionCall, features: FeatureMap
) -> Tensor:
    """Return phi(q_t) . phi(k_s) over its sum: [B, H, T, S] in the dtype of the features.

    phi_k is taken relative to the largest scale that a query sees.
    """
    allowed = masks.allowed(call.pattern, call.queries, call.keys, q.device)
    products = feature_products(q, k, allowed, call, features)
    products = products.masked_fill(~allowed, 0.0)
    totals = products.sum(dim=-1, keepdim=True)
    if not is_transformed():
        warn_of_vanished(totals, allowed.any(dim=-1, keepdim=True), features.floor)
    return products / divisor(totals, features.floor)


def feature_products(
    q: Tensor, k: Tensor, allowed: Tensor, call: AttentionCall, features: FeatureMap
) -> Tensor:
    """Return phi(q_t) . phi(k_s), [B, H, T, S] in the dtype of the features, up to a factor a row.

    The heads that share keys are folded into the rows of one product. The logarithms of the keys
    are taken relative to the largest one a query sees.
    """
    phi_q, (phi_k, logs) = features.queries(q), features.keys(k)
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    rows = phi_q.reshape(batch, k.shape[1], -1, phi_q.shape[-1])
    products = (rows @ phi_k.transpose(-1, -2)).view(batch, heads, queries, keys)
    if logs is not None and products.numel():
        logs = logs.repeat_interleave(call.group, dim=1)[:, :, None]
        logs = logs.expand_as(products).masked_fill(~allowed, -torch.inf)
        peak = logs.amax(dim=-1, keepdim=True)
        products = products * (logs - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
    return products


def weights_of_rows(
    q: Tensor, k: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the weights [B, H, T, S] in float64; a query that sees no key has weights 0."""
    if call.kernel.lane != "pairs":
        return weights(q.double(), k.double(), masks, call, parts.features)
    return weights_of_pairs(q.double(), k.double(), masks, call, parts)


def weights_of_pairs(
    q: Tensor, k: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the weights [B, H, T, S] of a kernel of pairs in the dtype of q."""
    return call.kernel.weigh(
        q,
        per_head(k, call),
        masks.allowed(call.pattern, call.queries, call.keys, q.device),
        scale=call.scale,
        bias=masks.bias(call, q.device),
        learned=parts.learned,
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    weights = parts.drop(weights_of_rows(q, k, masks, call, parts))
    return (weights @ per_head(v.double(), call)).to(q.dtype)


def per_head(x: Tensor, call: AttentionCall) -> Tensor:
    """Return the keys or values that each head of queries reads, [B, H, S, width]."""
    return x if call.group == 1 else x.repeat_interleave(call.group, dim=1)


def refuses(_: AttentionCall) -> list[str]:
    """Refuse nothing."""
    return []


REFERENCE = Op("reference", "in float64 as the formula says, the specification", attend, refuses)
