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

import ctypes
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import Elu, Favor
from suffice.ops import scan
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.fused import dense_rows
from suffice.ops.native import attention
from suffice.ops.native import library as of
from suffice.ops.native.library import library
from suffice.ops.op import Op, Parts, is_traced, refuses_transforms
from suffice.patterns import Causal


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


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    causal = isinstance(call.pattern, Causal)
    early = max(call.queries - call.keys, 0) if causal else 0  # before the first key
    sums = Sums(
        causal=causal,
        omega=getattr(parts.features, "omega", None),
        scale=getattr(parts.features, "scale", 1.0),
        seen=masks.valid,
        documents=masks.k_segments,
    )
    inputs = q[:, :, early:].float(), k.float(), v.float()
    if is_traced():
        tensors = sums.omega, sums.seen, sums.documents
        out = _scan(*inputs, *tensors, sums.causal, sums.scale)[0]
    else:
        out = _directly(*map(dense_rows, inputs), _dense(sums))
    return (F.pad(out, (0, 0, early, 0)) if early else out).to(q.dtype)


def refuses(call: AttentionCall) -> list[str]:
    """Refuse what `scan` does, other devices and dtypes, and features the kernels do not know."""
    reasons = scan.refuses(call) + refuses_transforms(call)
    if call.kernel.weighs_pairs:
        return reasons
    if attention.MISSING:
        reasons.append(f"there are no native kernels: {attention.MISSING}")
    if call.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if call.dtype not in DTYPES:
        reasons.append(f"its kernels compute float32, not {call.dtype}")
    if type(call.kernel) not in (Elu, Favor):
        reasons.append(
            f"its kernels make features of Elu and Favor, not of {type(call.kernel).__name__}"
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
    return forward(q, k, v, sums)[0]


class _Learned(torch.autograd.Function):
    """The kernels with their gradients."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, sums: Sums) -> Tensor:  # noqa: ANN001
        """Return the outputs."""
        out, totals = forward(q, k, v, sums)
        ctx.save_for_backward(q, k, v, out, totals)
        ctx.sums = sums
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor):  # noqa: ANN001, ANN205
        """Return the gradients of q, k and v."""
        return *backward(dense_rows(slope), *ctx.saved_tensors, ctx.sums), None


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
    return forward(*map(dense_rows, (q, k, v)), sums)


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
    return backward(slope, q, k, v, out, totals.contiguous(), sums)


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
