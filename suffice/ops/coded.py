"""Softmax attention of a few queries to what a memory holds in codes, without decoding it.

Letters: B batch, H query heads, G key/value heads, T queries, D head width.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from suffice.memory import Claim, Memory, Quantised, Store, Stretch
from suffice.native import held
from suffice.native import look as kernels
from suffice.native import structures as of
from suffice.native.look import Limits
from suffice.ops.look import limits_of, told
from suffice.ops.problem import Problem
from suffice.ops.sight import near
from suffice.ops.texts import text_of, value_of
from suffice.ops.where import Where
from suffice.patterns import Full

_holdings: WeakKeyDictionary[Store, held.Holding] = WeakKeyDictionary()


def reads(memory: Memory, problem: Problem) -> bool:
    """Return whether the kernels can read what this memory holds, for such queries.

    A memory that forgets tells where its last position stands, and no other one.
    """
    if not isinstance(memory, Quantised) or held.why_not(memory, problem.head_dim):
        return False
    return memory.window is None or (problem.queries == 1 and near(problem.pattern) is not None)


def attend(
    q: Tensor, store: Store, claim: Claim, memory: Memory, where: Where, problem: Problem
) -> tuple[Tensor, bool]:
    """Return the outputs [B, H, T, D] in the dtype of q, and whether all are finite.

    Args:
        q: [B, H, T, D].
        store: that keeps the keys and values.
        claim: where it says they lie.
        memory: whose settings it has.
        where: what restricts the queries; for a memory that forgets, padding on the left alone.
        problem: its pattern is the layer's own.
    """
    padding = None
    if memory.window is None:
        limits = limits_of(where, problem, q.device)
    else:  # what is beyond the window is not read
        limits = limits_of(Where(), replace(problem, pattern=Full()), q.device)
        if where.q_positions is not None:
            last = claim.near.end + claim.near.first - claim.near.start - 1
            padding = (last - where.q_positions[:, 0]).expand(q.shape[0]).contiguous()
    band = near(problem.pattern)
    window = None if band is None or band[0] is None or limits.allowed is not None else band[0] + 1
    numbers = problem.num_kv_heads, problem.scale, padding
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        out = _look(q, *_spread(claim), text_of(memory), window, *told(limits), *numbers)
        return out.to(q.dtype), True
    holding = _holdings.get(store)
    if holding is None or holding.reach != window:
        holding = held.Holding(of.Held(), memory, window, problem.head_dim)
        _holdings[store] = holding
    holding.take(claim, problem.queries)
    out, whole = kernels.look_at(q, holding.held, limits, *numbers)
    return out.to(q.dtype), whole


def _spread(claim: Claim) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[int]]:
    """Return a claim as what a registered operator takes."""
    near, coded = claim.near, claim.coded or Stretch((), 0, 0, 0)
    numbers = [n for one in (near, coded) for n in (one.start, one.end, one.first)]
    return list(near.parts), list(coded.parts), list(coded.sinks), numbers


@torch.library.custom_op("suffice::look_at_codes", mutates_args=())
def _look(
    q: Tensor,
    parts: list[Tensor],
    coded: list[Tensor],
    sinks: list[Tensor],
    spans: list[int],
    memory: str,
    window: int | None,
    before: int,
    after: int,
    slopes: Tensor | None,
    allowed: Tensor | None,
    q_at: Tensor | None,
    k_at: Tensor | None,
    groups: int,
    scale: float,
    padding: Tensor | None,
) -> Tensor:
    """Return the outputs [B, H, T, D], float32, for what `_spread` says of a claim."""
    limits = Limits(
        before=before, after=after, slopes=slopes, allowed=allowed, q_at=q_at, k_at=k_at
    )
    blocks = Stretch(tuple(coded), *spans[3:], tuple(sinks)) if coded else None
    kept = value_of(Memory, memory)
    holding = held.Holding(of.Held(), kept, window, q.shape[3])
    holding.take(Claim(Stretch(tuple(parts), *spans[:3]), blocks), q.shape[2])
    return kernels.look_at(q, holding.held, limits, groups, scale, padding)[0]


@_look.register_fake
def _(q, *given):  # noqa: ANN001, ANN002, ANN202
    del given
    return kernels.empty(q)
