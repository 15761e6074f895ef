"""Attention of whole sequences through the kernels: float32, on the CPU.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width, E value width.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.native import structures as of
from suffice.native.library import library

BLOCK = 32  # queries that share a list of keys


class Band(NamedTuple):
    """Query i sees the keys i + low to i + high."""

    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Lists:
    """Keys listed for each block of 32 queries.

    Args:
        starts: int64 [lists, blocks + 1], where the keys of a block begin in what follows.
        keys: int32 [n], ascending in each block.
        seen_by: int32 [n], bit i = query i of the block sees the key.
        of_heads: int64 [H], the list of each head.
    """

    starts: Tensor
    keys: Tensor
    seen_by: Tensor
    of_heads: Tensor


Sight = Band | Lists
Layout = tuple[torch.Size, tuple[int, ...]]


def forward(
    q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, *, logs: bool
) -> tuple[Tensor, Tensor | None, bool]:
    """Return the outputs, the logarithms of the rows' total weights, and whether all was finite.

    Args:
        q: [B, H, T, D], its last axis dense, as of all.
        k: [B, G, S, D]
        v: [B, G, S, E]
        sight: who sees what.
        scale: factor of the products.
        logs: False = None in place of the logarithms [B, H, T].
    """
    out = _rows_first(q, v.shape[3])
    total = q.new_empty(q.shape[:3]) if logs else None
    whole = _told(*_layouts(q, k, v, out), None, sight, scale)
    odd = library().suffice_attend(
        whole,
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        None if total is None else total.data_ptr(),
        torch.get_num_threads(),
    )
    return out, total, not odd


def backward(
    slope: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    sight: Sight,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of the outputs; arguments as of `forward`."""
    of_q, of_k, of_v = (_rows_first(x, x.shape[3]) for x in (q, k, v))
    whole = _told(*_layouts(q, k, v, out), slope.stride(), sight, scale)
    given = (q, k, v, out, logs, slope, of_q, of_k, of_v)
    library().suffice_attend_back(whole, *(x.data_ptr() for x in given), torch.get_num_threads())
    return of_q, of_k, of_v


def _layouts(*tensors: Tensor) -> tuple[Layout, ...]:
    return tuple((x.shape, x.stride()) for x in tensors)


def _rows_first(x: Tensor, width: int) -> Tensor:
    """Return an empty [B, heads, T, width] that lies in memory as [B, T, heads, width]."""
    batch, heads, length, _ = x.shape
    strides = (length * heads * width, width, heads * width, 1)
    return x.new_empty_strided((batch, heads, length, width), strides)


@lru_cache(maxsize=256)
def _told(
    q: Layout,
    k: Layout,
    v: Layout,
    out: Layout,
    slope: tuple[int, ...] | None,
    sight: Sight,
    scale: float,
) -> ctypes._CArgObject:
    """Return the structure the kernels read; it lives as long as the answer is kept."""
    (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q[0], v[0]
    whole = of.Whole(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
        scale=scale,
    )
    found = {"q": q[1], "k": k[1], "v": v[1], "out": out[1], "slope": slope}
    if slope is not None:
        for name, (_, number, length, wide) in {"q": q[0], "k": k[0], "v": v[0]}.items():
            found[f"of_{name}"] = (length * number * wide, wide, number * wide, 1)
    for name, strides in found.items():
        if strides is not None:
            setattr(whole, name, of.Strides(*strides[:3]))
    if isinstance(sight, Band):
        whole.low, whole.high = sight.low, sight.high
    else:
        whole.starts, whole.listed = sight.starts.data_ptr(), sight.keys.data_ptr()
        whole.seen_by, whole.list_of = sight.seen_by.data_ptr(), sight.of_heads.data_ptr()
    return ctypes.byref(whole)
