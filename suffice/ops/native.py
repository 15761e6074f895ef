"""Softmax attention of whole sequences in the library's own CPU kernels, float32.

A query is a lane of a vector, so a softmax needs no sum across lanes and keys are read where they
lie: one kernel serves dense, causal, windowed and listed patterns, and computes no block that
nobody sees. Other dtypes are torch's.

Eager calls go to the kernels directly. Where torch has to see what happens (a graph, a mode that
counts) the same kernels are a registered operator; what torch transforms (vmap, jvp) goes through
the products of `matmul`, which it knows.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.finite import finite
from suffice.native import attention as kernels
from suffice.native import library
from suffice.native.attention import Sight
from suffice.ops import matmul, poison
from suffice.ops.fused import dense_rows
from suffice.ops.looked import looked_into
from suffice.ops.op import Op, Parts, weighs_no_pairs
from suffice.ops.problem import Problem
from suffice.ops.sight import sight
from suffice.ops.texts import text_of, value_of
from suffice.ops.where import Where
from suffice.patterns import Pattern

MISSING = library.why_not()  # asked once, as a graph cannot ask


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, E]."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        out = _attend(q, k, v, text_of(problem.pattern), problem.scale)[0]
    elif looked_into(q, k, v):
        return matmul.attend(q, k, v, where, problem, parts)
    else:
        out, whole = _directly(q, k, v, problem)
        if not whole and not problem.unrestricted and not finite(k, v):
            return poison.marked(NATIVE, q, k, v, where, problem, parts)
    if torch.is_autocast_enabled(q.device.type):  # what torch's kernels would return
        out = out.to(torch.get_autocast_dtype(q.device.type))
    return out


def refuses(problem: Problem) -> list[str]:
    """Refuse what needs weights, data that restrict the pattern, and what is not float32."""
    reasons = weighs_no_pairs(problem)
    if MISSING:
        reasons.append(f"there are no native kernels: {MISSING}")
    if problem.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if problem.dtype is not torch.float32:
        reasons.append(f"its kernels compute float32, not {problem.dtype}")
    if problem.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if not problem.plain:
        reasons.append("it knows patterns, not valid, segments or masks")
    if problem.position.biases:
        reasons.append(f"it adds no bias, as {type(problem.position).__name__} does")
    return reasons


def _directly(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, bool]:
    """Return the outputs and whether all was finite."""
    q, k, v = map(dense_rows, (q, k, v))
    seen = sight(problem.pattern, problem.queries, problem.keys, problem.num_heads)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        whole: list[bool] = []
        return _Learned.apply(q, k, v, seen, problem.scale, whole), whole[0]
    out, _, whole_ = kernels.forward(q, k, v, seen, problem.scale, logs=False)
    return out, whole_


class _Learned(torch.autograd.Function):
    """The kernels with their gradients."""

    @staticmethod
    def forward(  # noqa: ANN205
        ctx,  # noqa: ANN001
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen: Sight,
        scale: float,
        whole: list[bool],
    ):
        """Return the outputs; whether all was finite is appended to `whole`."""
        out, logs, all_finite = kernels.forward(q, k, v, seen, scale, logs=True)
        whole.append(all_finite)
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.settings = seen, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor):  # noqa: ANN001, ANN205
        """Return the gradients of q, k and v."""
        return *kernels.backward(dense_rows(slope), *ctx.saved_tensors, *ctx.settings), *[None] * 3


@torch.library.custom_op("suffice::native", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, pattern: str, scale: float) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the logarithms [B, H, T] of the rows' total weights.

    Args:
        q: [B, H, T, D]
        k: [B, G, S, D]
        v: [B, G, S, E]
        pattern: as JSON.
        scale: factor of the products.
    """
    q, k, v = map(dense_rows, (q, k, v))
    out, logs, _ = kernels.forward(q, k, v, _seen(q, k, pattern), scale, logs=True)
    assert logs is not None  # noqa: S101 - they were asked for
    return out, logs


@_attend.register_fake
def _(q, k, v, pattern, scale):  # noqa: ANN001, ANN202
    del k, pattern, scale
    return _rows_first(q, v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op("suffice::native_backward", mutates_args=())
def _slopes(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    pattern: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; arguments as of `suffice::native`."""
    slope, q, k, v, out = map(dense_rows, (slope, q, k, v, out))
    return kernels.backward(slope, q, k, v, out, logs.contiguous(), _seen(q, k, pattern), scale)


@_slopes.register_fake
def _(slope, q, k, v, out, logs, pattern, scale):  # noqa: ANN001, ANN202
    del slope, out, logs, pattern, scale
    return tuple(_rows_first(x, x.shape[3]) for x in (q, k, v))


def _keep(ctx, inputs, output) -> None:  # noqa: ANN001 - torch's signature
    q, k, v, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output)


def _backward(ctx, slope, _):  # noqa: ANN001, ANN202 - torch's signature
    return *_slopes(slope, *ctx.saved_tensors, *ctx.settings), None, None


torch.library.register_autograd("suffice::native", _backward, setup_context=_keep)


def _seen(q: Tensor, k: Tensor, pattern: str) -> Sight:
    return sight(value_of(Pattern, pattern), q.shape[2], k.shape[2], q.shape[1])


def _rows_first(x: Tensor, width: int) -> Tensor:
    """Return an empty [B, heads, T, width] that lies in memory as [B, T, heads, width]."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


NATIVE = Op("native", "the library's own kernels, float32 on a CPU", attend, refuses, looks=True)
