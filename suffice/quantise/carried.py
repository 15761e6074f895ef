"""Rounding one input after the other; those that are left make up for the error so far.

Letters: N outputs, K inputs, C groups of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.quantise.rounding import best_scales, codes_of

DAMPING = 0.01  # of the mean square, added to each input's, as inputs may follow from each other


def carried(weight: Tensor, bits: int, group: int, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and scales that keep what the map makes of inputs, not the numbers themselves.

    Args:
        weight: float [N, K].
        bits: of a code, 8 or 4.
        group: inputs with one scale.
        moments: [K, K], the sum of x x^T over inputs x.

    Returns:
        int32 [N, K], 0 to 2^bits - 1, and float16 [N, C].

    Source: Frantar et al. 2023, arXiv:2210.17323, section 3, in the order of the inputs. Differs:
        scales of a group are sought for the least error once the inputs before it are rounded.
    """
    factor = _factor(moments)
    left = weight.double()
    codes, scales = [], []
    for begin in range(0, weight.shape[1], group):
        own = slice(begin, begin + group)
        inner = factor[own, own]
        part = left[:, own].clone()
        scale = best_scales(part, bits, inner.diagonal() ** -2)
        lost = torch.zeros_like(part)
        for i in range(group):
            code = codes_of(part[:, i], scale, bits)
            codes.append(code)
            number = (code - (1 << (bits - 1))) * scale.double()
            lost[:, i] = (part[:, i] - number) / inner[i, i]
            part[:, i + 1 :] -= lost[:, i, None] * inner[i, i + 1 :]
        left[:, begin + group :] -= lost @ factor[own, begin + group :]
        scales.append(scale)
    return torch.stack(codes, dim=1), torch.stack(scales, dim=1)


def _factor(moments: Tensor) -> Tensor:
    """Return the upper Cholesky factor [K, K] of the inverse of the damped moments."""
    moments = moments.double()
    mean = moments.diagonal().mean()
    damped = moments / torch.where(mean > 0, mean, 1.0)
    damped = damped + torch.eye(len(moments), dtype=torch.float64, device=moments.device) * (
        DAMPING if mean > 0 else 1.0
    )
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
