"""Softmax attention of a few queries, such as the next token of a text, in native CPU kernels.

Heads that share keys read them once, long texts are split among the threads, and keys, values and
masks are read as they are stored: nothing is copied. There are no gradients.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

from ctypes import byref, sizeof
from dataclasses import replace
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from suffice.memory import BufferView, Memory, Quantised, Slot, Store
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.native import cache
from suffice.ops.native import library as native
from suffice.ops.native.attention import band_of, cap_of, refuses_native
from suffice.ops.native.library import library
from suffice.ops.native.matrix import KINDS
from suffice.ops.op import (
    Op,
    Parts,
    dense_rows,
    empty_rows_first,
    is_traced,
    refuses_kernel,
    run_nonfinite,
    text_of,
    value_of,
)
from suffice.patterns import Full
from suffice.positions import Alibi, Position
from suffice.utils.torch_compat import finite

MAX_QUERIES = 8  # beyond, the kernels of whole sequences are faster
MAX_SHARED_QUERIES, MAX_HEAD_DIM = 128, 576  # as in csrc/isa/queries.h
EVERYTHING = 1 << 40  # positions before or after one
# a native.KVCache of numbers in one span, and a native.DecodeAttention without masks, as bytes:
# packing them takes a quarter of the time of filling in structures
NEAR = Struct(f"={2 * sizeof(native.Span)}x19q2q")
UNMASKED = Struct(f"=7q2f2q{sizeof(native.DecodeAttention) - 80}x")


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    if k.dtype is not v.dtype:  # autocast casts the outputs of maps, not columns taken from x
        dtype = torch.promote_types(k.dtype, v.dtype)
        k, v = k.to(dtype), v.to(dtype)
    free = call.unrestricted and not call.position.biases
    limits = NO_LIMITS if free else limits_of(masks, call, q.device)
    if parts.sinks is not None:
        limits = limits._replace(sinks=parts.sinks.float())
    settings = call.scale, cap_of(call)
    if is_traced():
        out = _decode(q, k, v, *limits, *settings)
    else:
        out, all_finite = decode_attention(q, dense_rows(k), dense_rows(v), limits, *settings)
        if not all_finite and not call.unrestricted and not finite(k, v):
            return run_nonfinite(DECODE, q, k, v, masks, call, parts)
    if torch.is_autocast_enabled(call.device):  # what torch's kernels would return
        return out.to(torch.get_autocast_dtype(call.device))
    return out if out.dtype is q.dtype else out.to(q.dtype)


def refuses(call: AttentionCall) -> list[str]:
    """Refuse many queries, wide heads, dropout and biases other than Alibi's."""
    reasons = refuses_kernel(call, sink=True, cap=True) + refuses_native(call, KINDS)
    if call.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if call.position.biases and type(call.position) is not Alibi:
        reasons.append(f"of biases it knows Alibi's, not {type(call.position).__name__}'s")
    if call.queries > MAX_QUERIES:
        reasons.append(f"it is for at most {MAX_QUERIES} queries, not {call.queries}")
    if call.queries * call.keys == 0:
        reasons.append("there is no query or no key")
    if max(call.head_dim, call.value_dim) > MAX_HEAD_DIM:
        reasons.append(
            f"its heads have widths of at most {MAX_HEAD_DIM}, not {call.head_dim} and "
            f"{call.value_dim}"
        )
    if call.group * call.queries > MAX_SHARED_QUERIES:
        reasons.append(
            f"{call.group} heads of {call.queries} queries share keys; it is for at most "
            f"{MAX_SHARED_QUERIES} together"
        )
    return reasons


DECODE = Op(
    "native_decode",
    "own kernels for few queries on a CPU",
    attend,
    refuses,
    masks_nonfinite=True,
    trains=False,
)


class ScoreTerms(NamedTuple):
    """The keys that the queries may attend to, and the terms of their scores; None: no term."""

    before: int = EVERYTHING  # positions before its own that a query sees
    after: int = EVERYTHING  # positions after it
    slopes: Tensor | None = None  # float32 [H], what a distance of 1 takes from a score
    allowed: Tensor | None = None  # bool, broadcasts to [B, H, T, S]: True = may attend
    q_at: Tensor | None = None  # int64 [B, T], positions; None: the queries stand last
    k_at: Tensor | None = None  # int64 [B, S], positions; given with q_at
    sinks: Tensor | None = None  # float32 [H], logits that belong to no key


NO_LIMITS = ScoreTerms()


def limits_of(masks: MaskInputs, call: AttentionCall, device: torch.device) -> ScoreTerms:
    """Return the limits that pattern, position and data set."""
    slopes, band = None, band_of(call.pattern)
    if call.position.biases:
        slopes = slopes_of(call.position, call.num_heads)
    if not masks.plain:
        allowed = masks.allowed(call.pattern, call.queries, call.keys, device)
        if slopes is None or masks.q_positions is None:
            return ScoreTerms(allowed=allowed, slopes=slopes)
        q_at, k_at = masks.q_positions, masks.k_positions
        return ScoreTerms(allowed=allowed, slopes=slopes, q_at=q_at, k_at=k_at)
    if band is not None:
        before, after = (EVERYTHING if n is None else n for n in band)
        return ScoreTerms(before=before, after=after, slopes=slopes)
    allowed, empty = masks.restrict(call, device)
    if empty is not None and allowed is not None:  # the kernels give 0 where nothing is seen
        allowed = allowed & ~empty
    return ScoreTerms(allowed=allowed, slopes=slopes)


def slopes_of(position: Position, heads: int) -> Tensor:
    """Return what a distance of 1 takes from the scores of each head, float32 [H]."""
    return (_slopes if torch.compiler.is_compiling() else _cached_slopes)(position, heads)


def _slopes(position: Position, heads: int) -> Tensor:
    query, key = torch.ones(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    return -position.bias(heads, query, key).flatten().float()


@lru_cache(maxsize=64)
def _cached_slopes(position: Position, heads: int) -> Tensor:
    with torch.inference_mode(False), torch.device("cpu"):
        return _slopes(position, heads)


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, limits: ScoreTerms, scale: float, cap: float = 0.0
) -> tuple[Tensor, bool]:
    """Return the outputs [B, H, T, E] in float32, and whether all are finite.

    Keys [B, G, S, D] and values [B, G, S, E] have a dtype of `KINDS`; their last axis is dense.
    """
    _, groups, keys, _ = k.shape
    first = max(keys - q.shape[2] - limits.before, 0)
    k_row, k_head, k_step, _ = k.stride()
    v_row, v_head, v_step, _ = v.stride()
    kv_cache = NEAR.pack(
        KINDS[k.dtype], 0, k.data_ptr(), v.data_ptr(), 0, 0,
        k_row, k_head, v_row, v_head, 0, 0, 0, 0, k_step, v_step, first, keys, 0, 1, 0,
    )  # fmt: skip
    return _decode_cached(q, kv_cache, limits, groups, v.shape[3], scale, cap)


def _decode_cached(
    q: Tensor,
    kv_cache: native.KVCache | bytes,
    limits: ScoreTerms,
    groups: int,
    value_width: int,
    scale: float,
    cap: float,
    padding: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Return the same for a cache of `groups` heads; `padding` int64 [B] begins each row."""
    batch, heads, queries, width = q.shape
    if q.dtype is not torch.float32 or not q.is_contiguous():
        q = q.to(torch.float32).contiguous()
    if queries == 1:  # both orders of axes are the same memory
        out = q.new_empty(batch, heads, 1, value_width)
    else:
        out = empty_rows_first(q, value_width)
    before, after, slopes, allowed, q_at, _, sinks = limits
    attention = UNMASKED.pack(
        q.data_ptr(), out.data_ptr(), heads, groups, width, value_width, queries, scale, cap,
        min(before, EVERYTHING), min(after, EVERYTHING),
    )  # fmt: skip
    alive: list[Tensor] = []
    if not slopes is allowed is q_at is padding is sinks is None:
        attention = native.DecodeAttention.from_buffer_copy(attention)
        if slopes is not None:
            attention.slopes = slopes.data_ptr()
        if padding is not None:
            attention.padding = padding.data_ptr()
        if sinks is not None:
            attention.logits = sinks.data_ptr()
        alive = _set_masks(attention, limits, q)
        attention = byref(attention)
    if not isinstance(kv_cache, bytes):
        kv_cache = byref(kv_cache)
    nonfinite = library().suffice_decode_attention(
        attention, kv_cache, batch, torch.get_num_threads()
    )
    del alive  # not before the kernels have read them
    return out, not nonfinite


def _set_masks(attention: native.DecodeAttention, limits: ScoreTerms, q: Tensor) -> list[Tensor]:
    batch, heads, queries, _ = q.shape
    alive = []
    if limits.allowed is not None:
        allowed = dense_rows(limits.allowed).expand(batch, heads, queries, -1)
        alive.append(allowed)
        attention.allowed = allowed.data_ptr()
        attention.allowed_row, attention.allowed_head, attention.allowed_query = allowed.stride()[
            :3
        ]
    if limits.q_at is not None and limits.k_at is not None:
        places = [x.expand(batch, -1).contiguous() for x in (limits.q_at, limits.k_at)]
        alive += places
        attention.q_at, attention.k_at = (x.data_ptr() for x in places)
        attention.keys = limits.k_at.shape[1]
    return alive


CODED = """(
    Tensor q, Tensor[] parts, Tensor[] coded, Tensor[] sinks, SymInt[] spans, str memory,
    SymInt? window, SymInt before, SymInt after, Tensor? slopes, Tensor? allowed, Tensor? q_at,
    Tensor? k_at, Tensor? logits, SymInt groups, float scale, float cap, Tensor? padding
) -> Tensor"""  # torch 2.6 does not read it from the annotations: it has no list[Tensor]


@torch.library.custom_op("suffice::native_decode", mutates_args=())
def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: int,
    after: int,
    slopes: Tensor | None,
    allowed: Tensor | None,
    q_at: Tensor | None,
    k_at: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """Return the outputs [B, H, T, E], float32; see `decode_attention` and `ScoreTerms`."""
    limits = ScoreTerms(before, after, slopes, allowed, q_at, k_at, sinks)
    return decode_attention(q, dense_rows(k), dense_rows(v), limits, scale, cap)[0]


_descriptors: WeakKeyDictionary[Store, cache.CacheDescriptor] = WeakKeyDictionary()


def reads_codes(memory: Memory, call: AttentionCall) -> bool:
    """Return whether the kernels can read the codes of this memory for a call."""
    if type(memory) is not Quantised or cache.why_not(memory, call.head_dim, call.value_dim):
        return False
    if call.grad or refuses(call):
        return False
    # of a rolling memory only the last position is known
    return memory.window is None or (call.queries == 1 and band_of(call.pattern) is not None)


def attend_coded(
    q: Tensor,
    store: Store,
    slot: Slot,
    memory: Memory,
    masks: MaskInputs,
    call: AttentionCall,
    sinks: Tensor | None,
) -> tuple[Tensor, bool]:
    """Return the outputs [B, H, T, D] in the dtype of q, and whether all are finite.

    Of a rolling memory's masks only padding on the left is read. `sinks` [H] as of `Parts`.
    """
    padding = None
    if memory.window is None:
        limits = limits_of(masks, call, q.device)
    else:  # the memory has dropped what is beyond the window
        limits = limits_of(MaskInputs(), replace(call, pattern=Full()), q.device)
        if masks.q_positions is not None:
            last = slot.recent.end + slot.recent.first - slot.recent.start - 1
            padding = (last - masks.q_positions[:, 0]).expand(q.shape[0]).contiguous()
    if sinks is not None:
        limits = limits._replace(sinks=sinks.float())
    band = band_of(call.pattern)
    window = None if band is None or band[0] is None or limits.allowed is not None else band[0] + 1
    groups, settings = call.num_kv_heads, (call.scale, cap_of(call), padding)
    if is_traced():
        near, coded = slot.recent, slot.encoded or BufferView((), 0, 0, 0)
        spans = [n for part in (near, coded) for n in (part.start, part.end, part.first)]
        tensors = list(near.tensors), list(coded.tensors), list(coded.sinks), spans
        out = _decode_coded(q, *tensors, text_of(memory), window, *limits, groups, *settings)
        return out.to(q.dtype), True
    descriptor = _descriptors.get(store)
    if descriptor is None or descriptor.reach != window:
        descriptor = cache.CacheDescriptor(native.KVCache(), memory, window, call.head_dim)
        _descriptors[store] = descriptor
    descriptor.update(slot, call.queries)
    out, all_finite = _decode_cached(
        q, descriptor.kv_cache, limits, groups, call.value_dim, *settings
    )
    return out.to(q.dtype), all_finite


@torch.library.custom_op("suffice::native_decode_coded", mutates_args=(), schema=CODED)
def _decode_coded(
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
    logits: Tensor | None,
    groups: int,
    scale: float,
    cap: float,
    padding: Tensor | None,
) -> Tensor:
    """Return the outputs [B, H, T, D], float32, for the tensors and spans of a slot."""
    limits = ScoreTerms(before, after, slopes, allowed, q_at, k_at, logits)
    blocks = BufferView(tuple(coded), *spans[3:], tuple(sinks)) if coded else None
    descriptor = cache.CacheDescriptor(
        native.KVCache(), value_of(Memory, memory), window, q.shape[3]
    )
    descriptor.update(Slot(BufferView(tuple(parts), *spans[:3]), blocks), q.shape[2])
    width = q.shape[3]
    return _decode_cached(q, descriptor.kv_cache, limits, groups, width, scale, cap, padding)[0]


@_decode.register_fake
def _(q, k, v, *others):
    del k, others
    return empty_rows_first(q, v.shape[3], torch.float32)


@_decode_coded.register_fake
def _(q, *others):
    del others
    return empty_rows_first(q, q.shape[3], torch.float32)
