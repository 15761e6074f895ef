"""Every op on this device, held against the float64 specification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from suffice.ops import OPS, Problem, Where
from suffice.patterns import Causal, Full, Pattern

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
QUERIES, KEYS, WIDTH = 33, 47, 32


@dataclass(frozen=True, kw_only=True)
class Check:
    """One op on one case.

    Args:
        op: name of the op.
        case: what was computed.
        error: largest absolute difference from the specification; None if the op refused.
        tolerance: the largest one that is rounding.
        refusal: why the op does not compute this, empty if it does.
    """

    op: str
    case: str
    error: float | None
    tolerance: float
    refusal: str = ""

    @property
    def passed(self) -> bool:
        """Whether the op was right or refused."""
        return self.error is None or self.error <= self.tolerance

    def __str__(self) -> str:
        told = f"refused: {self.refusal}" if self.error is None else f"error {self.error:.1e}"
        return f"{self.op:<8} {self.case:<36} {told}"


def check_ops(device: torch.device) -> Iterator[Check]:
    """Compute small cases with every op on a device: patterns, padding, shared heads, dtypes."""
    for dtype, tolerance in TOLERANCES.items():
        for pattern in (Full(), Causal()):
            for groups in (4, 1):
                for padded in (False, True):
                    yield from _check(device, dtype, tolerance, pattern, groups, padded)


def _check(
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
    pattern: Pattern,
    groups: int,
    padded: bool,
) -> Iterator[Check]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, QUERIES, WIDTH, generator=generator).to(device, dtype)
    k, v = (
        torch.randn(2, groups, KEYS, WIDTH, generator=generator).to(device, dtype) for _ in range(2)
    )
    valid = (torch.rand(2, KEYS, generator=generator) < 0.7).to(device) if padded else None
    where = Where(valid=valid)
    problem = Problem(
        queries=QUERIES,
        keys=KEYS,
        num_heads=4,
        num_kv_heads=groups,
        head_dim=WIDTH,
        value_dim=WIDTH,
        scale=WIDTH**-0.5,
        pattern=pattern,
        plain=where.plain,
        dtype=dtype,
        device=device.type,
    )
    case = f"{str(dtype)[6:]} {pattern!r} {groups} of 4 heads{' padded' if padded else ''}"
    want = OPS["reference"].run(q.double(), k.double(), v.double(), where, problem, _keep)
    for op in OPS.values():
        reasons = op.refuses(problem)
        if reasons:
            yield Check(
                op=op.name, case=case, error=None, tolerance=tolerance, refusal="; ".join(reasons)
            )
            continue
        got = op.run(q, k, v, where, problem, _keep).double()
        error = (got - want).abs().max().item()
        yield Check(op=op.name, case=case, error=error, tolerance=tolerance)


def _keep(x: torch.Tensor) -> torch.Tensor:
    return x
