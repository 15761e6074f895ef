"""Every op on this device, held against the float64 specification: outputs and gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from suffice.kernels import Elu, Kernel, Softmax
from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops.op import Op, Parts
from suffice.patterns import Causal, Full, Pattern, Window

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
SIZES = ((33, 47), (47, 47), (1, 47))  # queries, keys: a later block, a whole row, one token
HEADS = 4
KINDS: tuple[tuple[Kernel, Pattern], ...] = (
    (Softmax(), Full()),
    (Softmax(), Causal()),
    (Softmax(), Window(9) & Causal()),
    (Elu(), Full()),
    (Elu(), Causal()),
)
GROUPS = (4, 2, 1)  # key/value heads: one each, one for two, one for all
WIDTH = 32


@dataclass(frozen=True, kw_only=True)
class Check:
    """One op on one case."""

    op: str
    dtype: str
    case: str
    # largest of output and gradients, a share of the largest value above 1; None: refused
    error: float | None
    tolerance: float  # the largest error that is rounding
    refusal: str = ""

    @property
    def passed(self) -> bool:
        return self.error is None or self.error <= self.tolerance

    def __str__(self) -> str:
        result = f"refused: {self.refusal}" if self.error is None else f"error {self.error:.1e}"
        return f"{self.op} {self.dtype} {self.case}: {result}"


def check_ops(
    device: torch.device | str,
    *,
    dtypes: Collection[torch.dtype] | None = None,
    without: Collection[str] = (),
) -> Iterator[Check]:
    """Check every op on a device: kernels, patterns, padding, shared heads, dtypes.

    Padded cases hold a row that is all padding. An op that refuses a case is not wrong.
    """
    place = torch.device(device)
    for dtype, kind, groups, padded, sizes in product(
        dtypes or TOLERANCES, KINDS, GROUPS, (False, True), SIZES
    ):
        yield from _Case(place, dtype, *kind, groups, padded, *sizes).checks(without)


@dataclass(frozen=True)
class _Case:
    device: torch.device
    dtype: torch.dtype
    kernel: Kernel
    pattern: Pattern
    groups: int
    padded: bool
    queries: int
    keys: int

    def checks(self, without: Collection[str]) -> Iterator[Check]:
        q, k, v, slope, where = self._data()
        problem = self._problem(where)
        maps = self.kernel.build(head_dim=WIDTH, scale=problem.scale, device=self.device)
        parts = Parts(features=maps)
        exact = q.double(), k.double(), v.double()
        want = _run(OPS["reference"], exact, slope, where, problem, parts)
        for op in (op for name, op in OPS.items() if name not in without):
            reasons = op.refuses(problem)
            error = None
            if not reasons:
                error = _error(_run(op, (q, k, v), slope, where, problem, parts), want)
            yield Check(
                op=op.name,
                dtype=str(self.dtype).removeprefix("torch."),
                case=f"{self.kernel!r} {self.pattern!r} {self.queries} of {self.keys} keys, "
                f"{self.groups} of {HEADS} heads{', padded' if self.padded else ''}",
                error=error,
                tolerance=TOLERANCES[self.dtype],
                refusal="; ".join(reasons),
            )

    def _data(self) -> tuple[Tensor, Tensor, Tensor, Tensor, MaskInputs]:
        generator = torch.Generator().manual_seed(0)

        def normal(heads: int, length: int) -> Tensor:
            drawn = torch.randn(3, heads, length, WIDTH, generator=generator)
            return drawn.to(self.device, self.dtype)

        q, k, v = normal(HEADS, self.queries), *(normal(self.groups, self.keys) for _ in "kv")
        slope = normal(HEADS, self.queries)
        valid = torch.rand(3, self.keys, generator=generator) < 0.7
        valid[2] = False
        return q, k, v, slope, MaskInputs(valid=valid.to(self.device) if self.padded else None)

    def _problem(self, where: MaskInputs) -> AttentionCall:
        return AttentionCall(
            queries=self.queries,
            keys=self.keys,
            num_heads=HEADS,
            num_kv_heads=self.groups,
            head_dim=WIDTH,
            value_dim=WIDTH,
            scale=WIDTH**-0.5,
            pattern=self.pattern,
            kernel=self.kernel,
            plain=where.plain,
            padding=where.only_pads(self.pattern),
            device=self.device.type,
            dtype=self.dtype,
        )


def _run(
    op: Op,
    inputs: tuple[Tensor, ...],
    slope: Tensor,
    where: MaskInputs,
    problem: AttentionCall,
    parts: Parts,
) -> list[Tensor]:
    if not op.trains:
        with torch.no_grad():
            return [op.run(*inputs, where, problem, parts).double()]
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        out = op.run(*leaves, where, problem, parts)
        gradients = torch.autograd.grad(out, leaves, slope.to(out.dtype))
    return [x.detach().double() for x in (out, *gradients)]


def _error(got: list[Tensor], want: list[Tensor]) -> float:
    worst = 0.0
    for ours, theirs in zip(got, want, strict=False):  # some have no gradients
        difference = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0)
        worst = max(worst, difference.nan_to_num(nan=torch.inf).item())
    return worst
