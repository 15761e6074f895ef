"""Attention of a few positions to keys and values where they lie, through the kernels.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.native import structures as of
from suffice.native.library import library
from suffice.native.matrix import KINDS

MOST_QUERIES, WIDEST = 128, 512  # that share keys, features of a head; as isa/attend.h has them
EVERYTHING = 1 << 40  # positions before or after one


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the queries see.

    Args:
        before: positions before its own that a query sees.
        after: positions after it.
        slopes: float32 [H], what a distance of 1 takes from a score; None = nothing.
        allowed: bool, broadcasts to [B, H, T, S]: True = may attend; None = as told above.
        q_at: int64 [B, T], what distances count from; None = the queries stand last.
        k_at: int64 [B, S], where the keys stand; given with `q_at`.
    """

    before: int = EVERYTHING
    after: int = EVERYTHING
    slopes: Tensor | None = None
    allowed: Tensor | None = None
    q_at: Tensor | None = None
    k_at: Tensor | None = None


def look(q: Tensor, k: Tensor, v: Tensor, limits: Limits, scale: float) -> tuple[Tensor, bool]:
    """Return the outputs [B, H, T, D] in float32, and whether all are finite.

    Args:
        q: [B, H, T, D].
        k: [B, G, S, D] of a dtype of `KINDS`, its last axis dense.
        v: [B, G, S, D], as the keys.
        limits: what the queries see; of them `after` counts, and `before` beyond what is read.
        scale: factor of the products.
    """
    queries, keys = q.shape[2], k.shape[2]
    at, of_keys, of_values = max(keys - queries - limits.before, 0), k.stride(), v.stride()
    near = of.Span(
        KINDS[k.dtype], k.data_ptr(), v.data_ptr(), None, None,
        of_keys[0], of_keys[1], of_values[0], of_values[1], 0, 0, 0, 0,
        of_keys[2], of_values[2], at, keys, 0,
    )  # fmt: skip
    return look_at(q, of.Held(near=near, block=1), limits, k.shape[1], scale)


def look_at(
    q: Tensor,
    held: of.Held,
    limits: Limits,
    groups: int,
    scale: float,
    padding: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Return the same for keys and values of `groups` heads that a structure tells of.

    Args:
        q: [B, H, T, D].
        held: what the kernels read.
        limits: what the queries see.
        groups: G.
        scale: factor of the products.
        padding: int64 [B], positions at the beginning of each row that are none; None = 0.
    """
    batch, heads, queries, width = q.shape
    if q.dtype is not torch.float32 or not q.is_contiguous():
        q = q.to(torch.float32).contiguous()
    out = empty(q)
    told = of.Look(
        q.data_ptr(), out.data_ptr(), heads, groups, width, queries, scale, 0,
        min(limits.before, EVERYTHING), min(limits.after, EVERYTHING),
    )  # fmt: skip
    if limits.slopes is not None:
        told.slopes = limits.slopes.data_ptr()
    if padding is not None:
        told.padding = padding.data_ptr()
    kept = () if limits.allowed is None and limits.q_at is None else _restricted(told, limits, q)
    odd = library().suffice_look(byref(told), byref(held), batch, torch.get_num_threads())
    del kept  # the kernels are through
    return out, not odd


def empty(q: Tensor) -> Tensor:
    """Return room for outputs [B, H, T, D] in float32, which lie in memory as [B, T, H, D]."""
    if q.shape[2] == 1:  # the same, and one call less
        return torch.empty(q.shape, dtype=torch.float32, device=q.device)
    batch, heads, queries, width = q.shape
    return q.new_empty(batch, queries, heads, width, dtype=torch.float32).transpose(1, 2)


def _restricted(told: of.Look, limits: Limits, q: Tensor) -> list[Tensor]:
    """Tell of what names pairs and places; return the tensors that pointers point at."""
    batch, heads, queries, _ = q.shape
    kept = []
    if limits.allowed is not None:
        allowed = limits.allowed if limits.allowed.stride(3) == 1 else limits.allowed.contiguous()
        kept.append(allowed.expand(batch, heads, queries, -1))
        told.allowed = kept[0].data_ptr()
        told.allowed_row, told.allowed_head, told.allowed_query = kept[0].stride()[:3]
    if limits.q_at is not None and limits.k_at is not None:
        kept += [x.expand(batch, -1).contiguous() for x in (limits.q_at, limits.k_at)]
        told.q_at, told.k_at = (x.data_ptr() for x in kept[-2:])
        told.keys = limits.k_at.shape[1]
    return kept
