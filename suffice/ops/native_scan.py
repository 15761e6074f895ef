"""Sums of features along the sequence in the library's own CPU kernels.

What `scan` computes, with the features of Elu and Favor made where they are summed: neither
features nor pairs nor states leave the cache. The kernels compute float32; half types go through
it, as everywhere. Packed rows cost what their documents' last chunks leave unfilled.

Eager calls go to the kernels directly. Where torch has to see what happens (a graph, a mode that
counts) the same kernels are a registered operator; what torch transforms (vmap, jvp) goes through
the operations of `scan`, which it knows.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths,
F features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import Elu, Favor
from suffice.native import linear as kernels
from suffice.native.linear import Sums, rows_first
from suffice.ops import native, scan
from suffice.ops.fused import dense_rows
from suffice.ops.looked import looked_into
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.where import Where
from suffice.patterns import Causal

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    seen = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    if not seen and looked_into(q, k, v):
        return scan.attend(q, k, v, where, problem, parts)
    causal = isinstance(problem.pattern, Causal)
    early = max(problem.queries - problem.keys, 0) if causal else 0  # before the first key
    sums = Sums(
        causal=causal,
        omega=getattr(parts.features, "omega", None),
        scale=getattr(parts.features, "scale", 1.0),
        seen=where.valid,
        documents=where.k_segments,
    )
    inputs = q[:, :, early:].float(), k.float(), v.float()
    if seen:
        tensors = sums.omega, sums.seen, sums.documents
        out = _scan(*inputs, *tensors, sums.causal, sums.scale)[0]
    else:
        out = _directly(*map(dense_rows, inputs), _dense(sums))
    return (F.pad(out, (0, 0, early, 0)) if early else out).to(q.dtype)


def refuses(problem: Problem) -> list[str]:
    """Refuse what `scan` does, other devices and dtypes, and features the kernels do not know."""
    reasons = scan.refuses(problem)
    if problem.kernel.weighs_pairs:
        return reasons
    if native.MISSING:
        reasons.append(f"there are no native kernels: {native.MISSING}")
    if problem.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if problem.dtype not in DTYPES:
        reasons.append(f"its kernels compute float32, not {problem.dtype}")
    if type(problem.kernel) not in (Elu, Favor):
        reasons.append(
            f"its kernels make features of Elu and Favor, not of {type(problem.kernel).__name__}"
        )
    return reasons


def _dense(sums: Sums) -> Sums:
    """Return the same as the kernels read it."""
    omega, seen, documents = sums.omega, sums.seen, sums.documents
    return Sums(
        causal=sums.causal,
        omega=None if omega is None else omega.detach().float().contiguous(),
        scale=sums.scale,
        seen=None if seen is None else seen.contiguous(),
        documents=None if documents is None else documents.long().contiguous(),
    )


def _directly(q: Tensor, k: Tensor, v: Tensor, sums: Sums) -> Tensor:
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Learned.apply(q, k, v, sums)
    return kernels.forward(q, k, v, sums)[0]


class _Learned(torch.autograd.Function):
    """The kernels with their gradients."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, sums: Sums) -> Tensor:  # noqa: ANN001
        """Return the outputs."""
        out, totals = kernels.forward(q, k, v, sums)
        ctx.save_for_backward(q, k, v, out, totals)
        ctx.sums = sums
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor):  # noqa: ANN001, ANN205
        """Return the gradients of q, k and v."""
        return *kernels.backward(dense_rows(slope), *ctx.saved_tensors, ctx.sums), None


@torch.library.custom_op("suffice::native_scan", mutates_args=())
def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Tensor | None,
    seen: Tensor | None,
    documents: Tensor | None,
    causal: bool,  # noqa: FBT001 - an operator has no keywords
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the sums [B, H, T] of the weights behind them.

    Args:
        q: float32 [B, H, T, D]
        k: [B, G, S, D]
        v: [B, G, S, E]
        omega: of Favor, [F, D]; None = Elu.
        seen: bool [B, S], False = a hidden key; None = all are seen.
        documents: int [B, S], runs of equal numbers; None = one.
        causal: whether a query sees itself and earlier keys only.
        scale: of Favor.
    """
    sums = _dense(Sums(causal=causal, omega=omega, scale=scale, seen=seen, documents=documents))
    return kernels.forward(*map(dense_rows, (q, k, v)), sums)


@_scan.register_fake
def _(q, k, v, omega, seen, documents, causal, scale):  # noqa: ANN001, ANN202
    del k, omega, seen, documents, causal, scale
    return rows_first(q, v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op("suffice::native_scan_backward", mutates_args=())
def _slopes(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    totals: Tensor,
    omega: Tensor | None,
    seen: Tensor | None,
    documents: Tensor | None,
    causal: bool,  # noqa: FBT001
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; arguments as of `suffice::native_scan`."""
    slope, q, k, v, out = map(dense_rows, (slope, q, k, v, out))
    sums = _dense(Sums(causal=causal, omega=omega, scale=scale, seen=seen, documents=documents))
    return kernels.backward(slope, q, k, v, out, totals.contiguous(), sums)


@_slopes.register_fake
def _(slope, q, k, v, *others):  # noqa: ANN001, ANN002, ANN202
    del slope, others
    return tuple(rows_first(x, x.shape[3]) for x in (q, k, v))


def _keep(ctx, inputs, output) -> None:  # noqa: ANN001 - torch's signature
    q, k, v, omega, seen, documents, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, omega, seen, documents)


def _backward(ctx, slope, _):  # noqa: ANN001, ANN202 - torch's signature
    return *_slopes(slope, *ctx.saved_tensors, *ctx.settings), *[None] * 5


torch.library.register_autograd("suffice::native_scan", _backward, setup_context=_keep)

NATIVE_SCAN = Op(
    "native_scan", "the library's own kernels of sums of features, on a CPU", attend, refuses
)
