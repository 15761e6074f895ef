"""Numbers rounded to codes: a scale for each group of inputs, sought so that little is lost.

Letters: N outputs, K inputs, C groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from suffice.models import LM

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


MOMENTS_TOGETHER = 16  # rows computed at once


class Moments:
    """The sum of x x^T over the inputs x of each map, [K, K] in float64.

    Maps that read the same tensor share one sum.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.owners: dict[str, str] = {}  # of each map, the first one that read its inputs
        self.last: tuple[Tensor, str] | None = None

    def __getitem__(self, name: str) -> Tensor | None:
        """Return the sum of a map, None of one that read nothing."""
        return self.sums.get(self.owners.get(name, name))

    def add(self, name: str, x: Tensor) -> None:
        """Take what a map reads now."""
        if name not in self.owners:
            same = self.last is not None and self.last[0] is x
            self.owners[name] = self.last[1] if same else name
        if self.owners[name] == name:
            rows = x.detach().flatten(0, -2).double()
            self.sums[name] = self.sums.get(name, 0.0) + rows.t() @ rows
            self.last = x, name


@torch.no_grad()
def gather(
    lm: LM, names: Iterable[str], tokens: Tensor, step: Callable[[int, int], None]
) -> Moments:
    """Return the moments of the named maps over some text.

    Args:
        lm: in evaluation.
        names: of linear maps; "embedding.tokens" stands for the head where they are one.
        tokens: int [B, T].
        step: told how many rows of how many are done.
    """
    found, hooks = Moments(), []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, given: found.add(name, given[0])

    head = "embedding.tokens" if lm.head is None else "head"
    names = list(names)
    try:
        for name in names:
            if name not in ("head", "embedding.tokens"):
                hooks.append(lm.get_submodule(name).register_forward_pre_hook(hook(name)))
        for done, rows in enumerate(tokens.split(MOMENTS_TOGETHER)):
            features = lm.features(rows.to(lm.device))
            if head in names:
                found.add(head, features)
            step(min((done + 1) * MOMENTS_TOGETHER, len(tokens)), len(tokens))
    finally:
        for one in hooks:
            one.remove()
    found.last = None
    return found
