"""The float64 specification of some rows of a long sequence: what each side is held against first.

A row of attention reads all keys, so a few rows can be specified at lengths where all of them
could not. Gradients are checked alike: the loss reads those rows, so the gradients of all keys and
values come from them.

Letters: B batch, H heads, T positions, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops.op import NO_PARTS, Parts
from suffice.testing import assert_close

EDGE = 24  # rows at either end
NEAR = 64  # rows around multiples of it

Heads = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q, k, v) [B, H, T, D] -> outputs [B, H, T, D]."""


def checked_rows(length: int) -> Tensor:
    """Return rows at both ends, around block boundaries, and some between."""
    ends = [*range(min(EDGE, length)), *range(max(0, length - EDGE), length)]
    step = max(NEAR, length // 16 // NEAR * NEAR)
    boundaries = [at + near for at in range(0, length, step) for near in (-1, 0, 1, NEAR // 2)]
    return torch.tensor(sorted({row for row in [*ends, *boundaries] if 0 <= row < length}))


def rows_of(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, problem: AttentionCall, parts: Parts = NO_PARTS
) -> Tensor:
    """Return rows of the specification's output [B, H, rows, D] in float64."""
    batch, keys = q.shape[0], k.shape[2]
    where = MaskInputs(
        q_positions=rows.expand(batch, -1), k_positions=torch.arange(keys).expand(batch, -1)
    )
    asked = replace(problem, queries=len(rows), keys=keys, plain=False)
    q = q.double().index_select(2, rows)
    return OPS["reference"].run(q, k.double(), v.double(), where, asked, parts)


def check(
    compute: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    backward: bool,
    n: int,
) -> None:
    """Raise AssertionError unless `compute` is right within the rounding of float32.

    Args:
        compute: inputs -> output, positions on the second axis from the right.
        exact: (inputs in float64, rows) -> those rows of the output.
        inputs: float32.
        backward: whether to check the gradients of the inputs too.
        n: length of the longest sum behind one number.
    """
    rows = checked_rows(inputs[0].shape[-2])
    single = [x.detach().clone().requires_grad_(backward) for x in inputs]
    double = [x.detach().double().requires_grad_(backward) for x in inputs]
    with torch.set_grad_enabled(backward):
        got, want = compute(*single).index_select(-2, rows), exact(*double, rows)
    assert_close(got.detach(), want.detach(), n=n)
    if backward:
        slope = torch.randn(want.shape, generator=torch.Generator().manual_seed(1))
        slopes = torch.autograd.grad(got, single, slope)
        for a, b in zip(slopes, torch.autograd.grad(want, double, slope.double()), strict=True):
            assert_close(a, b, n=n)
