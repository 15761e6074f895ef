"""Sums of features along the sequence through the kernels: float32, on the CPU.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width, E value width,
F features.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.native import structures as of
from suffice.native.library import library


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """What is summed, beside queries, keys and values.

    Args:
        causal: whether a query sees itself and earlier keys only; then T <= S, the queries last.
        omega: float32 [F, D], features exp(omega x' - |x'|^2 / 2) of x' = sqrt(scale) x; None =
            elu(x) + 1.
        scale: above 0; without omega it is not read.
        seen: bool [B, S], False = a hidden key; None = all are seen.
        documents: int64 [B, S], runs of equal numbers, T = S; None = one. All tensors are dense.
    """

    causal: bool
    omega: Tensor | None = None
    scale: float = 1.0
    seen: Tensor | None = None
    documents: Tensor | None = None


def forward(q: Tensor, k: Tensor, v: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the sums [B, H, T] of the weights behind them.

    Args:
        q: [B, H, T, D], its last axis dense, as of all.
        k: [B, G, S, D]
        v: [B, G, S, E]
        sums: what is summed.
    """
    out, totals = rows_first(q, v.shape[3]), q.new_empty(q.shape[:3])
    if not (q.numel() and k.numel() and v.numel()):
        return out.zero_(), totals.zero_()
    told = _told(q, k, v, sums, out=out)
    given = (q, k, v, out, totals)
    library().suffice_linear(told, *(x.data_ptr() for x in given), torch.get_num_threads())
    return out, totals


def backward(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, totals: Tensor, sums: Sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of the outputs; arguments as of `forward`."""
    of_q, of_k, of_v = (rows_first(x, x.shape[3]) for x in (q, k, v))
    if not (q.numel() and k.numel() and v.numel()):
        return of_q.zero_(), of_k.zero_(), of_v.zero_()
    told = _told(q, k, v, sums, out=out, slope=slope, of_q=of_q, of_k=of_k, of_v=of_v)
    given = (q, k, v, out, totals, slope, of_q, of_k, of_v)
    library().suffice_linear_back(told, *(x.data_ptr() for x in given), torch.get_num_threads())
    return of_q, of_k, of_v


def rows_first(x: Tensor, width: int) -> Tensor:
    """Return an empty [B, heads, T, width] that lies in memory as [B, T, heads, width]."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def _told(q: Tensor, k: Tensor, v: Tensor, sums: Sums, **others: Tensor) -> ctypes._CArgObject:
    """Return the structure the kernels read; it points at tensors of `sums`, which outlive it."""
    (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q.shape, v.shape
    told = of.Linear(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=value_width,
        features=width if sums.omega is None else sums.omega.shape[0],
        causal=sums.causal,
        scale=sums.scale,
    )
    for name in ("omega", "seen", "documents"):
        tensor = getattr(sums, name)
        setattr(told, name, None if tensor is None else tensor.data_ptr())
    for name, tensor in {"q": q, "k": k, "v": v, **others}.items():
        setattr(told, name, of.Strides(*tensor.stride()[:3]))
    return ctypes.byref(told)
