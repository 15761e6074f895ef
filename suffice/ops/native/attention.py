"""Softmax attention of whole sequences in native CPU kernels.

A query is a lane of a vector, so a softmax needs no sum across lanes and keys are read in place:
one kernel serves dense, causal, windowed and listed patterns, and skips blocks without any pair
and padded keys. Half types are read and written as they are; sums are float32.

Eager calls go to the kernels directly. Where torch has to see the call (a graph, a mode that
counts) the same kernels are a registered operator.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import Softmax
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.native import library as native
from suffice.ops.native.library import library, why_not
from suffice.ops.op import (
    Op,
    Parts,
    dense_rows,
    empty_rows_first,
    is_traced,
    refuses_kernel,
    refuses_transforms,
    register_attention,
    run_nonfinite,
    slope_of_sinks,
    text_of,
    value_of,
    with_sinks,
)
from suffice.ops.sparse.blocked import DocumentRows
from suffice.patterns import Pattern
from suffice.utils.torch_compat import finite

KINDS = {torch.float32: native.F32, torch.float16: native.F16, torch.bfloat16: native.BF16}
BLOCK = 32  # queries that share a list of keys
BLOCKS_AT_ONCE = 1 << 10  # blocks whose pairs are evaluated together
WHOLE_BLOCK = 2  # in a layout: every pair of the block is allowed


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    if not q.dtype is k.dtype is v.dtype:  # under autocast columns of x stay as they are
        dtype = torch.promote_types(q.dtype, torch.promote_types(k.dtype, v.dtype))
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if call.documents:
        return _by_document(q, k, v, masks, call, parts)
    if is_traced():
        pattern = text_of(call.pattern)
        out = _attend(q, k, v, masks.valid, parts.sinks, pattern, call.scale, cap_of(call))[0]
    else:
        out, all_finite = _attend_directly(q, k, v, masks.valid, parts.sinks, call)
        if not all_finite and not call.unrestricted and not finite(k, v):
            return run_nonfinite(NATIVE, q, k, v, masks, call, parts)
    if torch.is_autocast_enabled("cpu"):  # what torch's kernels would return
        out = out.to(torch.get_autocast_dtype("cpu"))
    return out


def _by_document(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E] of documents one by one, 0 at padding."""
    batch, heads, length, _ = q.shape
    documents = DocumentRows.of(masks.numbers())
    lengths = documents.valid.sum(dim=1).tolist()
    places = documents.index[documents.valid]
    whole = len(places) == batch * length
    flat = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    apart = (x if whole else x[places] for x in flat)
    pieces = (x.transpose(0, 1)[None].split(lengths, dim=2) for x in apart)
    outs = [
        attend(*piece, MaskInputs(), call.of_document(size), parts)[0].transpose(0, 1)
        for size, *piece in zip(lengths, *pieces, strict=True)
    ]
    out = torch.cat(outs) if outs else v.new_zeros(0, heads, v.shape[3])
    if not whole:
        out = out.new_zeros(batch * length, *out.shape[1:]).index_copy(0, places, out)
    return out.unflatten(0, (batch, length)).transpose(1, 2)


def refuses(call: AttentionCall) -> list[str]:
    """Refuse dropout, biases, float64, and data that restrict the pattern beyond documents."""
    reasons = refuses_kernel(call, sink=True, cap=True) + refuses_native(call, KINDS)
    if call.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if not (call.plain or call.padding or call.documents):
        reasons.append("it knows patterns, padding and documents, not masks or positions")
    if call.documents and (call.compiling or band_of(call.pattern) is None):
        reasons.append("documents one by one are for bands, and not for compiled graphs")
    if call.position.biases:
        reasons.append(f"it adds no bias, as {type(call.position).__name__} does")
    return reasons


def cap_of(call: AttentionCall) -> float:
    """Return the bound of the products, 0.0 where there is none."""
    return call.kernel.cap or 0.0 if type(call.kernel) is Softmax else 0.0


def refuses_native(call: AttentionCall, dtypes: Iterable[torch.dtype]) -> list[str]:
    """Refuse transforms, other devices and other dtypes; everything where no kernels were built."""
    reasons = refuses_transforms(call)
    if absent := why_not():
        reasons.append(f"there are no native kernels: {absent}")
    if call.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if call.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        reasons.append(f"its kernels read {names}, not {call.dtype}")
    return reasons


NATIVE = Op("native", "the library's own kernels on a CPU", attend, refuses, masks_nonfinite=True)


class KeyRange(NamedTuple):
    """Query i sees the keys i + low to i + high."""

    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Lists:
    """Keys listed for each block of 32 queries."""

    starts: Tensor  # int64 [lists, blocks + 1], where the keys of a block begin in what follows
    keys: Tensor  # int32 [n], ascending in each block
    seen_by: Tensor  # int32 [n], bit i = query i of the block sees the key
    of_heads: Tensor  # int64 [H], the list of each head


SparsityPattern = KeyRange | Lists


def band_of(pattern: Pattern) -> tuple[int | None, int | None] | None:
    """Return the keys that a query sees before and after its own (None: all); None: no band."""
    return _band(pattern) if torch.compiler.is_compiling() else _cached_band(pattern)


def _band(pattern: Pattern) -> tuple[int | None, int | None] | None:
    band = pattern.band()
    return None if band is None or band.sinks else (band.before, band.after)


_cached_band = lru_cache(maxsize=256)(_band)


def sparsity_of(pattern: Pattern, queries: int, keys: int, heads: int) -> SparsityPattern:
    """Return which keys each query sees, the queries last among the keys."""
    band = band_of(pattern)
    if band is None:
        return _lists(pattern, queries, keys, heads)
    offset, most = keys - queries, queries + keys
    before, after = band
    return KeyRange(
        -most if before is None else max(offset - before, -most),
        most if after is None else min(offset + after, most),
    )


@lru_cache(maxsize=64)
def _lists(pattern: Pattern, queries: int, keys: int, heads: int) -> Lists:
    with torch.inference_mode(False), torch.device("cpu"):
        of_heads = pattern.of_heads(heads)
        patterns = list(dict.fromkeys(of_heads))
        starts, numbers, bits = zip(*(_listed(p, queries, keys) for p in patterns), strict=True)
        ends = torch.tensor([0, *map(len, numbers)]).cumsum(0)[:-1]
        return Lists(
            torch.stack(starts) + ends[:, None],
            torch.cat(numbers),
            torch.cat(bits),
            torch.tensor([patterns.index(p) for p in of_heads]),
        )


def _listed(pattern: Pattern, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the keys of each block begin, the keys, and which queries see them."""
    touched = pattern.layout(queries, keys, BLOCK).touched
    blocks = touched.nonzero()
    numbers = blocks[:, 1:] * BLOCK + torch.arange(BLOCK)  # [n, 32]
    bits = torch.full(numbers.shape, -1, dtype=torch.int32)
    partial = (touched[blocks[:, 0], blocks[:, 1]] != WHOLE_BLOCK).nonzero().flatten()
    for at in partial.split(BLOCKS_AT_ONCE):
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


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    sinks: Tensor | None,
    structure: native.SequenceAttention,
    *,
    logs: bool,
) -> tuple[Tensor, Tensor | None, bool]:
    """Return the outputs, the logarithms of the rows' total weights, and whether all was finite.

    The last axis of q [B, H, T, D], k [B, G, S, D] and v [B, G, S, E] is dense, as is all of
    `valid`, bool [B, S] or None. Without `logs` and sinks [H] the logarithms [B, H, T] are None.
    """
    out = empty_rows_first(q, v.shape[3])
    logs = logs or sinks is not None
    total = q.new_empty(q.shape[:3], dtype=torch.float32) if logs else None
    nonfinite = library().suffice_attend(
        ctypes.byref(structure if valid is None else _masked(structure, valid)),
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        None if total is None else total.data_ptr(),
        torch.get_num_threads(),
    )
    if sinks is not None and total is not None:
        out, total = with_sinks(out, total, sinks)
    return out, total, not nonfinite


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    valid: Tensor | None,
    structure: native.SequenceAttention,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of the outputs; arguments as of `forward`.

    A sink is a key whose value is 0: it is in the outputs and logarithms, and asks for no more.
    """
    grads = tuple(empty_rows_first(x, x.shape[3]) for x in (q, k, v))
    if valid is not None or grad.stride() != out.stride():
        structure = _masked(structure, valid)
        structure.out_grad = native.Strides(*grad.stride()[:3])
    tensors = (q, k, v, out, logs, grad, *grads)
    library().suffice_attend_back(
        ctypes.byref(structure), *[x.data_ptr() for x in tensors], torch.get_num_threads()
    )
    return grads


def structure_of(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, scale: float, cap: float
) -> native.SequenceAttention:
    """Return what the kernels read of a call, from a cache: it is not to be changed.

    With a cap above 0 products s become cap tanh(s / cap).
    """
    strides = q.stride(), k.stride(), v.stride()
    return _structure(q.shape, k.shape, v.shape, strides, q.dtype, pattern, scale, cap)


@lru_cache(maxsize=256)
def _structure(
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    pattern: Pattern,
    scale: float,
    cap: float,
) -> native.SequenceAttention:
    (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q, v
    sizes = batch, heads, kv_heads, queries, keys, width, value_width
    structure = native.SequenceAttention(*sizes, scale, KINDS[dtype], cap=cap)
    sparsity = structure.sparsity = sparsity_of(pattern, queries, keys, heads)  # kept alive
    rows_first = {"out": (*q[:3], value_width), "grad_q": q, "grad_k": k, "grad_v": v}
    for name, (_, number, length, features) in rows_first.items():
        lengths = length * number * features, features, number * features
        setattr(structure, name, native.Strides(*lengths))
    structure.out_grad = structure.out
    for name, numbers in zip("qkv", strides, strict=True):
        setattr(structure, name, native.Strides(*numbers[:3]))
    if isinstance(sparsity, KeyRange):
        structure.low, structure.high = sparsity.low, sparsity.high
    else:
        structure.starts, structure.listed = sparsity.starts.data_ptr(), sparsity.keys.data_ptr()
        structure.seen_by = sparsity.seen_by.data_ptr()
        structure.list_of = sparsity.of_heads.data_ptr()
    return structure


def _masked(structure: native.SequenceAttention, valid: Tensor | None) -> native.SequenceAttention:
    """Return a copy of a structure for keys that are `valid`."""
    structure = native.SequenceAttention.from_buffer_copy(structure)
    structure.valid = None if valid is None else valid.data_ptr()
    return structure


def _attend_directly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    sinks: Tensor | None,
    call: AttentionCall,
) -> tuple[Tensor, bool]:
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    valid = None if valid is None else valid.contiguous()
    structure = structure_of(q, k, v, call.pattern, call.scale, cap_of(call))
    learns_sinks = sinks is not None and sinks.requires_grad
    learns = q.requires_grad or k.requires_grad or v.requires_grad or learns_sinks
    if learns and torch.is_grad_enabled():  # `needs_gradient`, without its calls of functions
        flags: list[bool] = []
        return _Attend.apply(q, k, v, valid, sinks, flags, structure), flags[0]
    out, _, all_finite = forward(q, k, v, valid, sinks, structure, logs=False)
    return out, all_finite


class _Attend(torch.autograd.Function):
    """The kernels with their gradients; whether all was finite is appended to `flags`."""

    @staticmethod
    def forward(ctx, q, k, v, valid, sinks, flags, structure):
        out, logs, all_finite = forward(q, k, v, valid, sinks, structure, logs=True)
        flags.append(all_finite)
        ctx.save_for_backward(q, k, v, out, logs, valid, sinks)
        ctx.structure = structure
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        once = once_differentiable(_gradients) if torch.is_grad_enabled() else _gradients
        return once(ctx, grad)


def _gradients(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    *saved, sinks = ctx.saved_tensors
    of_tensors = backward(dense_rows(grad), *saved, ctx.structure)
    slope = None if sinks is None else slope_of_sinks(grad, saved[3], saved[4], sinks)
    return *of_tensors, None, slope, None, None


def _slopes(
    grad: Tensor, out: Tensor, logs: Tensor, _: Tensor | None, sinks: Tensor | None
) -> tuple[None, Tensor | None]:
    return None, None if sinks is None else slope_of_sinks(grad, out, logs, sinks)


@torch.library.custom_op("suffice::native", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    sinks: Tensor | None,
    pattern: str,
    scale: float,
    cap: float,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, E] and the logarithms [B, H, T] of the rows' total weights.

    Arguments as of `forward`, the pattern as JSON. With a cap above 0 products s become
    cap tanh(s / cap).
    """
    q, k, v = map(dense_rows, (q, k, v))
    valid = None if valid is None else valid.contiguous()
    structure = structure_of(q, k, v, value_of(Pattern, pattern), scale, cap)
    return forward(q, k, v, valid, sinks, structure, logs=True)[:2]


@torch.library.custom_op("suffice::native_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    valid: Tensor | None,
    sinks: Tensor | None,  # noqa: ARG001 - operators share their arguments
    pattern: str,
    scale: float,
    cap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v, out = map(dense_rows, (grad, q, k, v, out))
    valid = None if valid is None else valid.contiguous()
    structure = structure_of(q, k, v, value_of(Pattern, pattern), scale, cap)
    return backward(grad, q, k, v, out, logs.contiguous(), valid, structure)


register_attention(_attend, _attend_backward, _slopes)
