"""Weights rounded to codes with a scale per group: to the nearest code, or by GPTQ.

Letters: N outputs, K inputs, C groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from suffice.models import LM

SCALES = {8: (1.0,), 4: (0.68, 0.76, 0.82, 0.88, 0.92, 0.96, 1.0)}  # tried, of the full range
TOGETHER = 1 << 20  # weights rounded at once, so that they stay in the CPU's cache
DAMPING = 0.01  # of the mean square of the inputs, added to each, as inputs may be collinear
ROWS = 16  # of text, computed at once


def round_to_nearest(
    weight: Tensor, bits: int, group: int, importance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the codes of a matrix and their scales, each weight rounded to the nearest code.

    Of several scales, each group takes the one with the least squared error. In 4 bits, where one
    more level matters, a scale may be negative: codes reach one step further down than up.

    Args:
        weight: float [N, K].
        bits: of a code, 8 or 4.
        group: inputs with one scale.
        importance: float [K], weight of the errors at each input; None = all equal.

    Returns:
        int32 [N, K], 0 to 2^bits - 1, and float16 [N, C].

    Example:
        >>> codes, scales = round_to_nearest(torch.tensor([[-8.0, 7.0, 1.0, 0.0]]), 4, 4)
        >>> ((codes - 8) * scales).tolist()
        [[-8.0, 7.0, 1.0, 0.0]]
    """
    inputs = weight.shape[1]
    if importance is not None:
        importance = importance.view(-1, group).to(weight.dtype)
    codes, scales = [], []
    for rows in weight.split(max(TOGETHER // inputs, 1)):
        groups = rows.view(len(rows), -1, group)
        scale = best_scales(groups, bits, importance)
        codes.append(codes_of(groups, scale[..., None], bits).flatten(1))
        scales.append(scale)
    return torch.cat(codes), torch.cat(scales)


def best_scales(groups: Tensor, bits: int, importance: Tensor | None = None) -> Tensor:
    """Return a scale for each group, float16 [...].

    Args:
        groups: float [..., group].
        bits: of a code, 8 or 4.
        importance: broadcasts to the groups; None = all equal.
    """
    levels = 1 << (bits - 1)
    widest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))[..., 0]
    if bits == 8:  # noqa: PLR2004
        ranges = [widest.abs() / (levels - 1)]
    else:
        ranges = [widest / (levels - 1), widest / -levels]
    best = least = None
    for scale in (full * fraction for full in ranges for fraction in SCALES[bits]):
        scale = scale.half()
        rounded = (codes_of(groups, scale[..., None], bits) - levels) * scale[..., None]
        error = (rounded - groups).square()
        error = (error if importance is None else error * importance).sum(dim=-1)
        if best is None:
            best, least = scale, error
        else:
            best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best


def codes_of(weights: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Return the codes nearest to weights, int32; the middle one where the scale is 0."""
    levels = 1 << (bits - 1)
    scales = scales.to(weights.dtype)
    codes = (weights / torch.where(scales == 0, torch.inf, scales)).round()
    return (codes.clamp(-levels, levels - 1) + levels).to(torch.int32)


def gptq(weight: Tensor, bits: int, group: int, gram: Tensor) -> tuple[Tensor, Tensor]:
    """GPTQ: quantise columns in order, propagating each error to the rest.

    This keeps the outputs of the map rather than its weights.

    Args:
        weight: float [N, K].
        bits: of a code, 8 or 4.
        group: inputs with one scale.
        gram: [K, K], the sum of x x^T over inputs x.

    Returns:
        int32 [N, K], 0 to 2^bits - 1, and float16 [N, C].

    Source: Frantar et al. 2023, arXiv:2210.17323, section 3, in the order of the inputs. Differs:
        the scale of a group is chosen for the least error after the inputs before it are rounded.
    """
    factor = _inverse_factor(gram)
    remaining = weight.double()
    codes, scales = [], []
    for begin in range(0, weight.shape[1], group):
        columns = slice(begin, begin + group)
        inner = factor[columns, columns]
        part = remaining[:, columns].clone()
        scale = best_scales(part, bits, inner.diagonal() ** -2)
        errors = torch.zeros_like(part)
        for i in range(group):
            code = codes_of(part[:, i], scale, bits)
            codes.append(code)
            rounded = (code - (1 << (bits - 1))) * scale.double()
            errors[:, i] = (part[:, i] - rounded) / inner[i, i]
            part[:, i + 1 :] -= errors[:, i, None] * inner[i, i + 1 :]
        remaining[:, begin + group :] -= errors @ factor[columns, begin + group :]
        scales.append(scale)
    return torch.stack(codes, dim=1), torch.stack(scales, dim=1)


def _inverse_factor(gram: Tensor) -> Tensor:
    """Return the upper Cholesky factor [K, K] of the inverse of the damped Gram matrix."""
    gram = gram.double()
    mean = gram.diagonal().mean()
    identity = torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    damped = gram / torch.where(mean > 0, mean, 1.0) + identity * (DAMPING if mean > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


class CalibrationStats:
    """The Gram matrix of the inputs of each map: the sum of x x^T, [K, K] in float64.

    Maps that read the same tensor share one matrix.
    """

    def __init__(self) -> None:
        self.grams: dict[str, Tensor] = {}
        self.shared: dict[str, str] = {}  # for each map, the first one with the same inputs
        self.last: tuple[Tensor, str] | None = None

    def __getitem__(self, name: str) -> Tensor | None:
        """Return the matrix of a map, None if it read nothing."""
        return self.grams.get(self.shared.get(name, name))

    def add(self, name: str, x: Tensor) -> None:
        """Add the inputs [..., K] of a map."""
        if name not in self.shared:
            same = self.last is not None and self.last[0] is x
            self.shared[name] = self.last[1] if same else name
        if self.shared[name] == name:
            rows = x.detach().flatten(0, -2).double()
            self.grams[name] = self.grams.get(name, 0.0) + rows.t() @ rows
            self.last = x, name


@torch.no_grad()
def calibrate(
    lm: LM, names: Iterable[str], tokens: Tensor, step: Callable[[int, int], None]
) -> CalibrationStats:
    """Return the statistics of the inputs of the named maps on a text.

    Args:
        lm: in evaluation mode.
        names: of linear maps; "embedding.tokens" stands for a tied head.
        tokens: int [B, T].
        step: called with the rows done and their number.
    """
    stats, hooks = CalibrationStats(), []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _module, inputs: stats.add(name, inputs[0])

    head = "embedding.tokens" if lm.head is None else "head"
    names = list(names)
    try:
        for name in names:
            if name not in ("head", "embedding.tokens"):
                hooks.append(lm.get_submodule(name).register_forward_pre_hook(hook(name)))
        for done, rows in enumerate(tokens.split(ROWS)):
            features = lm.features(rows.to(lm.device))
            if head in names:
                stats.add(head, features)
            step(min((done + 1) * ROWS, len(tokens)), len(tokens))
    finally:
        for handle in hooks:
            handle.remove()
    stats.last = None
    return stats
