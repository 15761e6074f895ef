"""Sums of features along the sequence in native CPU kernels, for Elu and Favor.

What `scan` computes, with features made where they are summed: neither features nor pairs nor
states leave the cache. The kernels compute float32; half types are converted.

Eager calls go to the kernels directly. Where torch has to see the call (a graph, a mode that
counts) the same kernels are a registered operator.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths,
F features.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import Elu, Favor
from suffice.ops import scan
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.native import library as native
from suffice.ops.native.attention import refuses_native
from suffice.ops.native.library import library
from suffice.ops.op import (
    Op,
    Parts,
    dense_rows,
    empty_rows_first,
    is_traced,
    needs_gradient,
    register_attention,
)
from suffice.ops.reference import warn_of_vanished
from suffice.patterns import Causal


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    causal = type(call.pattern) is Causal
    early = max(call.queries - call.keys, 0) if causal else 0  # queries before the first key
    omega = getattr(parts.features, "omega", None)
    scale = getattr(parts.features, "scale", 1.0)
    inputs = q[:, :, early:].float(), k.float(), v.float()
    data = omega, masks.valid, masks.k_segments, causal, scale
    if is_traced():
        out = _scan(*inputs, *data)[0]
    else:
        args = *map(dense_rows, inputs), _Sums.of(*data)
        out = _Scan.apply(*args) if needs_gradient(*inputs) else forward(*args)[0]
    return (F.pad(out, (0, 0, early, 0)) if early else out).to(q.dtype)


def refuses(call: AttentionCall) -> list[str]:
    """Refuse what `scan` does, other devices and dtypes, and unsupported features."""
    reasons = scan.refuses(call)
    if call.kernel.lane == "pairs":
        return reasons
    reasons += refuses_native(call, (torch.float32, torch.float16, torch.bfloat16))
    if type(call.kernel) not in (Elu, Favor):
        reasons.append(
            f"its kernels make features of Elu and Favor, not of {type(call.kernel).__name__}"
        )
    return reasons


NATIVE_SCAN = Op(
    "native_scan", "the library's own kernels of sums of features, on a CPU", attend, refuses
)


@dataclass(frozen=True, eq=False)
class _Sums:
    """The inputs of the sums other than queries, keys and values; all tensors are dense."""

    # float32 [F, D], features exp(omega x' - |x'|^2 / 2) of x' = sqrt(scale) x; None: elu(x) + 1
    omega: Tensor | None
    valid: Tensor | None  # bool [B, S], False = a masked key
    documents: Tensor | None  # int64 [B, S], runs of equal numbers, T = S; None: one
    causal: bool  # a query sees itself and earlier keys only; then T <= S, the queries last
    scale: float  # above 0; without omega it is not read

    @classmethod
    def of(cls, omega, valid, documents, causal: bool, scale: float) -> _Sums:
        """Return the sums for the arguments of `suffice::native_scan`."""
        return cls(
            None if omega is None else omega.detach().float().contiguous(),
            None if valid is None else valid.contiguous(),
            None if documents is None else documents.long().contiguous(),
            causal,
            scale,
        )

    def structure(self, q: Tensor, k: Tensor, v: Tensor, **others: Tensor) -> ctypes._CArgObject:
        """Return the structure the kernels read, which points at the tensors of these sums."""
        (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q.shape, v.shape
        features = width if self.omega is None else self.omega.shape[0]
        sizes = batch, heads, kv_heads, queries, keys, width, value_width, features
        structure = native.Linear(*sizes, causal=self.causal, scale=self.scale)
        for name in ("omega", "valid", "documents"):
            tensor = getattr(self, name)
            setattr(structure, name, None if tensor is None else tensor.data_ptr())
        for name, tensor in {"q": q, "k": k, "v": v, **others}.items():
            setattr(structure, name, native.Strides(*tensor.stride()[:3]))
        return ctypes.byref(structure)


def forward(q: Tensor, k: Tensor, v: Tensor, sums: _Sums) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the sums [B, H, T] of their weights.

    The last axis of q [B, H, T, D], k [B, G, S, D] and v [B, G, S, E] is dense.
    """
    out, totals = empty_rows_first(q, v.shape[3]), q.new_empty(q.shape[:3])
    if not (q.numel() and k.numel() and v.numel()):
        return out.zero_(), totals.zero_()
    structure, tensors = sums.structure(q, k, v, out=out), (q, k, v, out, totals)
    library().suffice_linear(structure, *(x.data_ptr() for x in tensors), torch.get_num_threads())
    seen = sums.valid
    if seen is not None and not sums.causal:
        seen = seen.any(dim=1, keepdim=True)
    seen = None if seen is None else seen[:, None, -q.shape[2] :]  # a causal query sees its own key
    if sums.documents is None or sums.causal:
        warn_of_vanished(totals, seen)
    return out, totals


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, totals: Tensor, sums: _Sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of the outputs; arguments as of `forward`."""
    grad_q, grad_k, grad_v = (empty_rows_first(x, x.shape[3]) for x in (q, k, v))
    if not (q.numel() and k.numel() and v.numel()):
        return grad_q.zero_(), grad_k.zero_(), grad_v.zero_()
    structure = sums.structure(
        q, k, v, out=out, out_grad=grad, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v
    )
    tensors = (q, k, v, out, totals, grad, grad_q, grad_k, grad_v)
    threads = torch.get_num_threads()
    library().suffice_linear_back(structure, *(x.data_ptr() for x in tensors), threads)
    return grad_q, grad_k, grad_v


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, sums: _Sums) -> Tensor:
        out, totals = forward(q, k, v, sums)
        ctx.save_for_backward(q, k, v, out, totals)
        ctx.sums = sums
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return *backward(dense_rows(grad), *ctx.saved_tensors, ctx.sums), None


@torch.library.custom_op("suffice::native_scan", mutates_args=())
def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Tensor | None,
    valid: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the sums [B, H, T] of their weights; see `_Sums`."""
    return forward(*map(dense_rows, (q, k, v)), _Sums.of(omega, valid, documents, causal, scale))


@torch.library.custom_op("suffice::native_scan_backward", mutates_args=())
def _scan_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    totals: Tensor,
    omega: Tensor | None,
    valid: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out = map(dense_rows, (grad, q, k, v, out))
    sums = _Sums.of(omega, valid, documents, causal, scale)
    return backward(grad, q, k, v, out, totals.contiguous(), sums)


register_attention(_scan, _scan_backward)
