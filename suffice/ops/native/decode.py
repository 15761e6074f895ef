"""Softmax attention of a few queries to keys and values where they lie, in the CPU kernels.

This is what one more token of a text costs. Heads that share keys read them once, long texts are
split among the threads, float16 and bfloat16 are read as they are stored, and what data hide is
told to the kernels: nothing is copied. Gradients are the other ops'.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from suffice.memory import BufferView, Memory, Quantised, Slot, Store
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.fused import dense_rows
from suffice.ops.native import attention, cache
from suffice.ops.native import library as of
from suffice.ops.native.attention import band_of
from suffice.ops.native.library import library
from suffice.ops.native.matrix import KINDS
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
from suffice.patterns import Full
from suffice.positions import Alibi, Position
from suffice.torch_compat import finite

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
    cache: of.Held,
    limits: Limits,
    groups: int,
    scale: float,
    padding: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Return the same for keys and values of `groups` heads that a structure tells of.

    Args:
        q: [B, H, T, D].
        cache: what the kernels read.
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
    odd = library().suffice_look(byref(told), byref(cache), batch, torch.get_num_threads())
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


MOST = 8  # positions at once; from there on whole sequences are what the kernels are better at


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, D] in the dtype of q."""
    k, v = _alike(k, v)
    limits = limits_of(masks, call, q.device)
    if is_traced():
        out = _look(q, k, v, *told(limits), call.scale)
    else:
        out, whole = look(q, *map(dense_rows, (k, v)), limits, call.scale)
        if not whole and not call.unrestricted and not finite(k, v):
            return run_nonfinite(DECODE, q, k, v, masks, call, parts)
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


def refuses(call: AttentionCall) -> list[str]:
    """Refuse many queries, and what the kernels do not know."""
    reasons = refuses_features(call) + refuses_transforms(call)
    if attention.MISSING:
        reasons.append(f"there are no native kernels: {attention.MISSING}")
    if call.device != "cpu":
        reasons.append("its kernels are for the CPU")
    if call.dtype not in KINDS:
        reasons.append(f"its kernels read float32, float16 and bfloat16, not {call.dtype}")
    if call.dropping:
        reasons.append("dropping needs the weights, which it never forms")
    if call.position.biases and not isinstance(call.position, Alibi):
        reasons.append(f"of biases it knows Alibi's, not {type(call.position).__name__}'s")
    return reasons + _of_sizes(call)


def _of_sizes(call: AttentionCall) -> list[str]:
    reasons = []
    if call.queries > MOST:
        reasons.append(f"it is for at most {MOST} queries, not {call.queries}")
    if call.queries * call.keys == 0:
        reasons.append("there is no query or no key")
    if call.value_dim != call.head_dim or call.head_dim > WIDEST:
        reasons.append(
            f"its heads have one width of at most {WIDEST}, not {call.head_dim} and "
            f"{call.value_dim}"
        )
    if call.group * call.queries > MOST_QUERIES:
        reasons.append(
            f"{call.group} heads of {call.queries} queries share keys; it is for at most "
            f"{MOST_QUERIES} together"
        )
    return reasons


def limits_of(masks: MaskInputs, call: AttentionCall, device: torch.device) -> Limits:
    """Return what pattern, position and data let the queries see."""
    slopes, band = None, band_of(call.pattern)
    if call.position.biases:
        slopes = slopes_of(call.position, call.num_heads)
    before, after = (EVERYTHING if n is None else n for n in band or (None, None))
    if masks.plain:
        if band is not None:
            return Limits(before=before, after=after, slopes=slopes)
        allowed = masks.restrict(call, device)
        return Limits(allowed=_opened(*allowed), slopes=slopes)
    allowed = masks.allowed(call.pattern, call.queries, call.keys, device)
    if slopes is None or masks.q_positions is None:
        return Limits(allowed=allowed, slopes=slopes)
    return Limits(allowed=allowed, slopes=slopes, q_at=masks.q_positions, k_at=masks.k_positions)


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
    return look(q, *map(dense_rows, (k, v)), limits, scale)[0]


@_look.register_fake
def _(q, k, v, before, after, slopes, allowed, q_at, k_at, scale):  # noqa: ANN001, ANN202
    del k, v, before, after, slopes, allowed, q_at, k_at, scale
    return empty(q)


DECODE = Op(
    "native_decode",
    "own kernels for few queries on a CPU",
    attend,
    refuses,
    masks_nonfinite=True,
    trains=False,
)


_holdings: WeakKeyDictionary[Store, cache.Holding] = WeakKeyDictionary()


def reads(memory: Memory, call: AttentionCall) -> bool:
    """Return whether the kernels can read what this memory holds, for such queries.

    A memory that forgets tells where its last position stands, and no other one.
    """
    if not isinstance(memory, Quantised) or cache.why_not(memory, call.head_dim):
        return False
    return memory.window is None or (call.queries == 1 and band_of(call.pattern) is not None)


def attend_coded(
    q: Tensor, store: Store, slot: Slot, memory: Memory, masks: MaskInputs, call: AttentionCall
) -> tuple[Tensor, bool]:
    """Return the outputs [B, H, T, D] in the dtype of q, and whether all are finite.

    Args:
        q: [B, H, T, D].
        store: that keeps the keys and values.
        slot: where they lie.
        memory: whose settings it has.
        masks: what restricts the queries; for a memory that forgets, padding on the left alone.
        call: its pattern is the layer's own.
    """
    padding = None
    if memory.window is None:
        limits = limits_of(masks, call, q.device)
    else:  # what is beyond the window is not read
        limits = limits_of(MaskInputs(), replace(call, pattern=Full()), q.device)
        if masks.q_positions is not None:
            last = slot.recent.end + slot.recent.first - slot.recent.start - 1
            padding = (last - masks.q_positions[:, 0]).expand(q.shape[0]).contiguous()
    band = band_of(call.pattern)
    window = None if band is None or band[0] is None or limits.allowed is not None else band[0] + 1
    numbers = call.num_kv_heads, call.scale, padding
    if is_traced():
        out = _look_coded(q, *_spread(slot), text_of(memory), window, *told(limits), *numbers)
        return out.to(q.dtype), True
    holding = _holdings.get(store)
    if holding is None or holding.reach != window:
        holding = cache.Holding(of.Held(), memory, window, call.head_dim)
        _holdings[store] = holding
    holding.take(slot, call.queries)
    out, whole = look_at(q, holding.held, limits, *numbers)
    return out.to(q.dtype), whole


def _spread(slot: Slot) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[int]]:
    """Return a slot as what a registered operator takes."""
    near, coded = slot.recent, slot.encoded or BufferView((), 0, 0, 0)
    numbers = [n for one in (near, coded) for n in (one.start, one.end, one.first)]
    return list(near.tensors), list(coded.tensors), list(coded.sinks), numbers


@torch.library.custom_op("suffice::look_at_codes", mutates_args=())
def _look_coded(
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
    """Return the outputs [B, H, T, D], float32, for what `_spread` says of a slot."""
    limits = Limits(
        before=before, after=after, slopes=slopes, allowed=allowed, q_at=q_at, k_at=k_at
    )
    blocks = BufferView(tuple(coded), *spans[3:], tuple(sinks)) if coded else None
    kept = value_of(Memory, memory)
    holding = cache.Holding(of.Held(), kept, window, q.shape[3])
    holding.take(Slot(BufferView(tuple(parts), *spans[:3]), blocks), q.shape[2])
    return look_at(q, holding.held, limits, groups, scale, padding)[0]


@_look_coded.register_fake
def __coded(q, *given):  # noqa: ANN001, ANN002, ANN202
    del given
    return empty(q)
