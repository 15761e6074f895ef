"""Numbers rounded to codes: a scale for each group of inputs, sought so that little is lost.

Letters: N outputs, K inputs, C groups of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHARES = {8: (1.0,), 4: (0.68, 0.76, 0.82, 0.88, 0.92, 0.96, 1.0)}  # of the widest range, tried
TOGETHER = 1 << 20  # numbers looked at once, so that they stay in a cache


def rounded(
    weight: Tensor, bits: int, group: int, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the codes of a matrix and their scales, rounded to the nearest.

    A scale is the one of some that leaves the least squared error in its group. In 4 bits, where a
    level more counts, a scale may be negative: codes reach one step further down than up.

    Args:
        weight: float [N, K].
        bits: of a code, 8 or 4.
        group: inputs with one scale.
        importance: float [K], how much an error at each input counts; None = all alike.

    Returns:
        int32 [N, K], 0 to 2^bits - 1, and float16 [N, C].

    Example:
        >>> codes, scales = rounded(torch.tensor([[-8.0, 7.0, 1.0, 0.0]]), 4, 4)
        >>> ((codes - 8) * scales).tolist()
        [[-8.0, 7.0, 1.0, 0.0]]
    """
    inputs = weight.shape[1]
    counts = None if importance is None else importance.view(-1, group).to(weight.dtype)
    codes, scales = [], []
    for rows in weight.split(max(TOGETHER // inputs, 1)):
        parts = rows.view(len(rows), -1, group)
        scale = best_scales(parts, bits, counts)
        codes.append(codes_of(parts, scale[..., None], bits).flatten(1))
        scales.append(scale)
    return torch.cat(codes), torch.cat(scales)


def best_scales(parts: Tensor, bits: int, importance: Tensor | None = None) -> Tensor:
    """Return a scale for each group, float16 [...].

    Args:
        parts: float [..., group].
        bits: of a code, 8 or 4.
        importance: float [group], or as many dimensions more as fit the parts; None = all alike.
    """
    levels = 1 << (bits - 1)
    at = parts.abs().argmax(dim=-1, keepdim=True)
    widest = parts.gather(-1, at)[..., 0]
    shares = SHARES[bits]
    if bits == 8:  # noqa: PLR2004
        tried = [widest.abs() / (levels - 1) * share for share in shares]
    else:
        tried = [widest / end * share for end in (levels - 1, -levels) for share in shares]
    best = least = None
    for scale in tried:
        scale = scale.half()
        wrong = (codes_of(parts, scale[..., None], bits) - levels) * scale[..., None] - parts
        lost = wrong.square()
        lost = (lost if importance is None else lost * importance).sum(dim=-1)
        if best is None:
            best, least = scale, lost
        else:
            best, least = torch.where(lost < least, scale, best), torch.minimum(lost, least)
    return best


def codes_of(numbers: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return the codes nearest to numbers, int32; the middle one where the scale is 0."""
    levels = 1 << (bits - 1)
    scales = scales.to(numbers.dtype)
    codes = (numbers / torch.where(scales == 0, torch.inf, scales)).round()
    return (codes.clamp(-levels, levels - 1) + levels).to(torch.int32)
