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

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.fused import dense_rows
from suffice.ops.native import library as of
from suffice.ops.native.library import library, why_not
from suffice.ops.op import (
    Op,
    Parts,
    is_traced,
    refuses_features,
    refuses_transforms,
    run_nonfinite,
    text_of,
    value_of,
)
from suffice.patterns import Pattern
from suffice.torch_compat import finite

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


SparsityPattern = Band | Lists
Layout = tuple[torch.Size, tuple[int, ...]]


def forward(
    q: Tensor, k: Tensor, v: Tensor, sparsity: SparsityPattern, scale: float, *, logs: bool
) -> tuple[Tensor, Tensor | None, bool]:
    """Return the outputs, the logarithms of the rows' total weights, and whether all was finite.

    Args:
        q: [B, H, T, D], its last axis dense, as of all.
        k: [B, G, S, D]
        v: [B, G, S, E]
        sparsity: which keys each query sees.
        scale: factor of the products.
        logs: False = None in place of the logarithms [B, H, T].
    """
    out = _rows_first_attention(q, v.shape[3])
    total = q.new_empty(q.shape[:3]) if logs else None
    whole = _told(*_layouts(q, k, v, out), None, sparsity, scale)
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
    sparsity: SparsityPattern,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of the outputs; arguments as of `forward`."""
    of_q, of_k, of_v = (_rows_first_attention(x, x.shape[3]) for x in (q, k, v))
    whole = _told(*_layouts(q, k, v, out), slope.stride(), sparsity, scale)
    given = (q, k, v, out, logs, slope, of_q, of_k, of_v)
    library().suffice_attend_back(whole, *(x.data_ptr() for x in given), torch.get_num_threads())
    return of_q, of_k, of_v


def _layouts(*tensors: Tensor) -> tuple[Layout, ...]:
    return tuple((x.shape, x.stride()) for x in tensors)


def _rows_first_attention(x: Tensor, width: int) -> Tensor:
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
    sparsity: SparsityPattern,
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
    if isinstance(sparsity, Band):
        whole.low, whole.high = sparsity.low, sparsity.high
    else:
        whole.starts, whole.listed = sparsity.starts.data_ptr(), sparsity.keys.data_ptr()
        whole.seen_by, whole.list_of = sparsity.seen_by.data_ptr(), sparsity.of_heads.data_ptr()
    return ctypes.byref(whole)


ASKED = 1 << 10  # blocks whose pairs are asked at a time
EVERY = 2  # pairs of a block, as a layout says it


def band_of(pattern: Pattern) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after its own a query sees; None = all of them.

    None in place of the pair if the pattern is no band, or one with sinks.
    """
    band = pattern.band()
    return None if band is None or band.sinks else (band.before, band.after)


def sparsity_of(pattern: Pattern, queries: int, keys: int, heads: int) -> SparsityPattern:
    """Return who sees what, the queries last among the keys."""
    band = band_of(pattern)
    if band is None:
        return _kept(pattern, queries, keys, heads)
    offset, all_of_them = keys - queries, queries + keys
    before, after = band
    return Band(
        -all_of_them if before is None else max(offset - before, -all_of_them),
        all_of_them if after is None else min(offset + after, all_of_them),
    )


def share_of_lanes(lists: Lists) -> float:
    """Return the share of the pairs computed that are seen."""
    if not len(lists.keys):
        return 1.0
    bits = torch.arange(BLOCK, dtype=torch.int32)
    seen = sum(
        int(((some[:, None] >> bits) & 1).sum()) for some in lists.seen_by.split(ASKED * BLOCK)
    )
    return seen / (BLOCK * len(lists.keys))


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, queries: int, keys: int, heads: int) -> Lists:
    with torch.inference_mode(False), torch.device("cpu"):
        return _lists(pattern, queries, keys, heads)


def _lists(pattern: Pattern, queries: int, keys: int, heads: int) -> Lists:
    of_heads = pattern.of_heads(heads)
    different = list(dict.fromkeys(of_heads))
    found = [_listed(one, queries, keys) for one in different]
    ends = torch.tensor([0] + [len(numbers) for _, numbers, _ in found]).cumsum(0)
    return Lists(
        torch.stack([starts + end for (starts, _, _), end in zip(found, ends, strict=False)]),
        torch.cat([numbers for _, numbers, _ in found]),
        torch.cat([bits for _, _, bits in found]),
        torch.tensor([different.index(one) for one in of_heads]),
    )


def _listed(pattern: Pattern, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the keys of each block begin, the keys, and who sees them."""
    touched = pattern.layout(queries, keys, BLOCK).touched
    blocks = touched.nonzero()
    numbers = blocks[:, 1:] * BLOCK + torch.arange(BLOCK)  # [n, 32]
    bits = torch.full(numbers.shape, -1, dtype=torch.int32)
    some = (touched[blocks[:, 0], blocks[:, 1]] != EVERY).nonzero().flatten()
    for at in some.split(ASKED):
        bits[at] = _bits(pattern, blocks[at], queries, keys)
    real = (numbers < keys) & (bits != 0)
    counts = torch.zeros(touched.shape[0] + 1, dtype=torch.long)
    counts.index_add_(0, blocks[:, 0] + 1, real.sum(1))
    return counts.cumsum(0), numbers[real].int(), bits[real]


def _bits(pattern: Pattern, blocks: Tensor, queries: int, keys: int) -> Tensor:
    """Return for the keys of blocks [n, 2] the bits of the queries that see them: int32 [n, 32]."""
    within = torch.arange(BLOCK)
    q = (blocks[:, :1] * BLOCK + within).clamp(max=queries - 1) + (keys - queries)
    k = (blocks[:, 1:] * BLOCK + within).clamp(max=keys - 1)
    allowed = pattern.allowed(q[:, :, None], k[:, None, :]).expand(len(blocks), BLOCK, BLOCK)
    powers = torch.ones(BLOCK, dtype=torch.int64) << within
    return (allowed.long() * powers[:, None]).sum(1).to(torch.int32)


MISSING = why_not()  # asked once, as a graph cannot ask


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E]."""
    if is_traced():
        out = _attend(q, k, v, text_of(call.pattern), call.scale)[0]
    else:
        out, whole = _directly(q, k, v, call)
        if not whole and not call.unrestricted and not finite(k, v):
            return run_nonfinite(NATIVE, q, k, v, masks, call, parts)
    if torch.is_autocast_enabled(q.device.type):  # what torch's kernels would return
        out = out.to(torch.get_autocast_dtype(q.device.type))
    return out


def refuses(call: AttentionCall) -> list[str]:
    """Refuse what needs weights, data that restrict the pattern, and what is not float32."""
    reasons = refuses_features(call) + refuses_transforms(call)
    if MISSING:
        reasons.append(f"there are no native kernels: {MISSING}")
    if call.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if call.dtype is not torch.float32:
        reasons.append(f"its kernels compute float32, not {call.dtype}")
    if call.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if not call.plain:
        reasons.append("it knows patterns, not valid, segments or masks")
    if call.position.biases:
        reasons.append(f"it adds no bias, as {type(call.position).__name__} does")
    return reasons


def _directly(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> tuple[Tensor, bool]:
    """Return the outputs and whether all was finite."""
    q, k, v = map(dense_rows, (q, k, v))
    seen = sparsity_of(call.pattern, call.queries, call.keys, call.num_heads)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        whole: list[bool] = []
        return _Learned.apply(q, k, v, seen, call.scale, whole), whole[0]
    out, _, whole_ = forward(q, k, v, seen, call.scale, logs=False)
    return out, whole_


class _Learned(torch.autograd.Function):
    """The kernels with their gradients."""

    @staticmethod
    def forward(  # noqa: ANN205
        ctx,  # noqa: ANN001
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen: SparsityPattern,
        scale: float,
        whole: list[bool],
    ):
        """Return the outputs; whether all was finite is appended to `whole`."""
        out, logs, all_finite = forward(q, k, v, seen, scale, logs=True)
        whole.append(all_finite)
        ctx.save_for_backward(q, k, v, out, logs)
        ctx.settings = seen, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, slope: Tensor):  # noqa: ANN001, ANN205
        """Return the gradients of q, k and v."""
        return *backward(dense_rows(slope), *ctx.saved_tensors, *ctx.settings), *[None] * 3


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
    out, logs, _ = forward(q, k, v, _seen(q, k, pattern), scale, logs=True)
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
    return backward(slope, q, k, v, out, logs.contiguous(), _seen(q, k, pattern), scale)


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


def _seen(q: Tensor, k: Tensor, pattern: str) -> SparsityPattern:
    return sparsity_of(value_of(Pattern, pattern), q.shape[2], k.shape[2], q.shape[1])


def _rows_first(x: Tensor, width: int) -> Tensor:
    """Return an empty [B, heads, T, width] that lies in memory as [B, T, heads, width]."""
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


NATIVE = Op(
    "native", "the library's own kernels, float32 on a CPU", attend, refuses, masks_nonfinite=True
)
