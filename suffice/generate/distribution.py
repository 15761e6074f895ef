"""Probabilities of the next token.

Letters: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.generate.sampling import Sample


def penalised(logits: Tensor, seen: Tensor | None, penalty: float) -> Tensor:
    """Return logits with those of tokens that were seen brought nearer to never.

    Args:
        logits: [N, V].
        seen: bool [N, V]; None = no penalty.
        penalty: divides positive logits and multiplies negative ones.

    Example:
        >>> penalised(torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  1.]])
    """
    if seen is None:
        return logits
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    most = torch.finfo(logits.dtype).max  # an infinite logit has no probability
    return torch.where(seen, changed.clamp(min=-most, max=most), logits)


def probabilities(logits: Tensor, sample: Sample, seen: Tensor | None = None) -> Tensor:
    """Return the probabilities [N, V] that tokens are drawn with, fp32.

    Args:
        logits: [N, V].
        sample: what changes and restricts them.
        seen: bool [N, V], tokens the penalty holds for; None = no penalty.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0, -100.0]])
        >>> probabilities(logits, Sample(top_k=2))
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    logits = penalised(logits.float(), seen, sample.repetition_penalty)
    divisor = max(sample.temperature, torch.finfo(logits.dtype).tiny)
    # from the highest down: the highest stays finite whatever divides it
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / divisor
    if sample.top_k is not None and sample.top_k < logits.shape[-1]:
        least = logits.topk(sample.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    shares = logits.softmax(dim=-1)
    if sample.top_p == 1.0 and sample.min_p == 0.0:
        return shares
    left = shares >= sample.min_p * shares.amax(dim=-1, keepdim=True)
    if sample.top_p < 1.0:
        left &= _fewest(shares, sample.top_p)
    shares = shares.masked_fill(~left, 0.0)
    return shares / shares.sum(dim=-1, keepdim=True)


def _fewest(shares: Tensor, top_p: float) -> Tensor:
    """Return which most probable tokens together have the share top_p: bool [N, V]."""
    ordered, order = shares.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    left = before < top_p
    left[..., 0] = True
    return torch.empty_like(left).scatter_(-1, order, left)


def pick(shares: Tensor, at: Tensor) -> Tensor:
    """Return the token [N] where the running sum of probabilities passes a share of the whole.

    Args:
        shares: [N, V], not negative; rows need not sum to 1.
        at: float64 [N] in [0, 1).

    Example:
        >>> shares = torch.tensor([[0.25, 0.0, 0.75]]).expand(3, -1)
        >>> pick(shares, torch.tensor([0.0, 0.25, 0.99]).double())
        tensor([0, 2, 2])
    """
    sums = shares.double().cumsum(dim=-1)
    whole = sums[..., -1:]
    below = torch.nextafter(whole, torch.zeros_like(whole))  # a token of no share is never picked
    return torch.searchsorted(sums, torch.minimum(at[..., None] * whole, below), right=True)[..., 0]
