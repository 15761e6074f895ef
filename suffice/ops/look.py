"""Softmax attention of a few queries to keys and values where they lie, in the CPU kernels.

This is what one more token of a text costs. Heads that share keys read them once, long texts are
split among the threads, float16 and bfloat16 are read as they are stored, and what data hide is
told to the kernels: nothing is copied. Gradients are the other ops'.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from suffice.errors import UnsupportedError
from suffice.finite import finite
from suffice.native import look as kernels
from suffice.native.look import EVERYTHING, MOST_QUERIES, WIDEST, Limits
from suffice.native.matrix import KINDS
from suffice.ops import matmul, native, poison
from suffice.ops.fused import dense_rows
from suffice.ops.looked import looked_into
from suffice.ops.op import Op, Parts, weighs_no_pairs
from suffice.ops.problem import Problem
from suffice.ops.sight import near
from suffice.ops.where import Where
from suffice.positions import Alibi, Position

MOST = 8  # positions at once; from there on whole sequences are what the kernels are better at


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, D] in the dtype of q.

    Raises:
        UnsupportedError: where gradients are recorded.
    """
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise UnsupportedError(
            f"impl={LOOK.name!r} has no gradients; call it under torch.no_grad() or "
            "torch.inference_mode(), or use impl='auto'."
        )
    graph = torch.compiler.is_compiling()
    if not graph and looked_into(q, k, v):
        return matmul.attend(q, k, v, where, problem, parts)
    k, v = _alike(k, v)
    limits = limits_of(where, problem, q.device)
    if graph or torch._C._len_torch_dispatch_stack():
        out = _look(q, k, v, *told(limits), problem.scale)
    else:
        out, whole = kernels.look(q, *map(dense_rows, (k, v)), limits, problem.scale)
        if not whole and not problem.unrestricted and not finite(k, v):
            return poison.marked(LOOK, q, k, v, where, problem, parts)
    if torch.is_autocast_enabled(q.device.type):  # what torch's kernels would return
        return out.to(torch.get_autocast_dtype(q.device.type))
    return out if out.dtype is q.dtype else out.to(q.dtype)


def _alike(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of one dtype, as the kernels are told of one.

    Under autocast columns of x stay as they are beside what a map gives in half precision.
    """
    if k.dtype is v.dtype:
        return k, v
    both = torch.promote_types(k.dtype, v.dtype)
    return k.to(both), v.to(both)


def refuses(problem: Problem) -> list[str]:
    """Refuse many queries, and what the kernels do not know."""
    reasons = weighs_no_pairs(problem)
    if native.MISSING:
        reasons.append(f"there are no native kernels: {native.MISSING}")
    if problem.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if problem.dtype not in KINDS:
        reasons.append(f"its kernels read float32, float16 and bfloat16, not {problem.dtype}")
    if problem.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if problem.position.biases and not isinstance(problem.position, Alibi):
        reasons.append(f"of biases it knows Alibi's, not {type(problem.position).__name__}'s")
    return reasons + _of_sizes(problem)


def _of_sizes(problem: Problem) -> list[str]:
    reasons = []
    if problem.queries > MOST:
        reasons.append(f"it is for at most {MOST} queries, not {problem.queries}")
    if problem.queries * problem.keys == 0:
        reasons.append("there is no query or no key")
    if problem.value_dim != problem.head_dim or problem.head_dim > WIDEST:
        reasons.append(
            f"its heads have one width of at most {WIDEST}, not {problem.head_dim} and "
            f"{problem.value_dim}"
        )
    if problem.group * problem.queries > MOST_QUERIES:
        reasons.append(
            f"{problem.group} heads of {problem.queries} queries share keys; it is for at most "
            f"{MOST_QUERIES} together"
        )
    return reasons


def limits_of(where: Where, problem: Problem, device: torch.device) -> Limits:
    """Return what pattern, position and data let the queries see."""
    slopes, band = None, near(problem.pattern)
    if problem.position.biases:
        slopes = slopes_of(problem.position, problem.num_heads)
    before, after = (EVERYTHING if n is None else n for n in band or (None, None))
    if where.plain:
        if band is not None:
            return Limits(before=before, after=after, slopes=slopes)
        allowed = where.restrict(problem, device)
        return Limits(allowed=_opened(*allowed), slopes=slopes)
    allowed = where.allowed(problem.pattern, problem.queries, problem.keys, device)
    if slopes is None or where.q_positions is None:
        return Limits(allowed=allowed, slopes=slopes)
    return Limits(allowed=allowed, slopes=slopes, q_at=where.q_positions, k_at=where.k_positions)


def _opened(allowed: Tensor | None, empty: Tensor | None) -> Tensor | None:
    """Return what queries see: the kernels give 0 where that is nothing."""
    return allowed if empty is None or allowed is None else allowed & ~empty


@lru_cache(maxsize=64)
def _kept_slopes(position: Position, heads: int) -> Tensor:
    with torch.inference_mode(False), torch.device("cpu"):
        one, none = torch.ones(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
        return -position.bias(heads, one, none).flatten().float()


def slopes_of(position: Position, heads: int) -> Tensor:
    """Return what a distance of 1 takes from the scores of each head, float32 [H]."""
    if torch.compiler.is_compiling():
        one, none = torch.ones(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
        return -position.bias(heads, one, none).flatten().float()
    return _kept_slopes(position, heads)


Told = tuple[int, int, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def told(limits: Limits) -> Told:
    """Return the same as what a registered operator takes."""
    return limits.before, limits.after, limits.slopes, limits.allowed, limits.q_at, limits.k_at


@torch.library.custom_op("suffice::look", mutates_args=())
def _look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: int,
    after: int,
    slopes: Tensor | None,
    allowed: Tensor | None,
    q_at: Tensor | None,
    k_at: Tensor | None,
    scale: float,
) -> Tensor:
    """Return the outputs [B, H, T, D], float32; arguments as of `kernels.look` and its limits."""
    limits = Limits(
        before=before, after=after, slopes=slopes, allowed=allowed, q_at=q_at, k_at=k_at
    )
    return kernels.look(q, *map(dense_rows, (k, v)), limits, scale)[0]


@_look.register_fake
def _(q, k, v, before, after, slopes, allowed, q_at, k_at, scale):  # noqa: ANN001, ANN202
    del k, v, before, after, slopes, allowed, q_at, k_at, scale
    return kernels.empty(q)


LOOK = Op(
    "native_decode",
    "own kernels for few queries on a CPU",
    attend,
    refuses,
    looks=True,
    trains=False,
)
