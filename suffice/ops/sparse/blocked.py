"""Sparse softmax attention that computes only the blocks a pattern touches, and learns.

Tiles of queries and keys (`cut`) go through torch's flash kernel, which returns the logarithm of
each row's total weight; parts that hold different keys of the same query are merged by it. The
backward pass runs over the same tiles with the merged totals. Any pattern, any length, O(T) memory
for patterns that touch O(T) pairs.

It is a registered operator, so a compiled graph holds it whole, whatever the lengths.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops import fused
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import (
    Op,
    Parts,
    dense_rows,
    empty_rows_first,
    refuses_transforms,
    text_of,
    value_of,
)
from suffice.ops.sparse import sweep
from suffice.ops.sparse.plan import BACKWARD, FORWARD, Cut, cut
from suffice.patterns import Pattern
from suffice.positions import Position


@dataclass(frozen=True)
class Documents:
    """Where the tokens of documents lie.

    Args:
        index: int [N, L], place of each token in the flattened [B * T]; 0 behind the end.
        valid: bool [N, L], False behind the end of a document.
    """

    index: Tensor
    valid: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> Documents:
        """Return the documents of rows.

        Args:
            numbers: int [B, T], equal for the tokens of a document, -1 = padding; the tokens of a
                document lie behind each other, with nothing but padding between them.
        """
        batch, length = numbers.shape
        row = torch.arange(batch, device=numbers.device)[:, None] * (length + 1)
        places = (numbers >= 0).flatten().nonzero().flatten()
        name = (numbers + row).flatten()[places]
        _, document, counts = name.unique_consecutive(return_inverse=True, return_counts=True)
        longest = int(counts.max()) if len(counts) else 0
        along = torch.arange(len(places), device=numbers.device)
        along = along - (counts.cumsum(0) - counts)[document]
        index = places.new_zeros(len(counts), longest)
        index[document, along] = places
        valid = torch.arange(longest, device=numbers.device) < counts[:, None]
        return cls(index, valid)

    def take(self, x: Tensor) -> Tensor:
        """Return x [B, H, T, ...] as [N, H, L, ...], 0 behind the ends; a copy."""
        taken = x.transpose(1, 2).flatten(0, 1)[self.index]
        behind = ~self.valid.view(*self.valid.shape, *[1] * (taken.dim() - 2))
        return taken.masked_fill_(behind, 0.0).transpose(1, 2)

    def put(self, x: Tensor, batch: int, length: int) -> Tensor:
        """Return x [N, H, L, ...] as [batch, H, length, ...], 0 where no document has a token."""
        shape = x.shape[:2][1:] + x.shape[3:]
        flat = x.new_zeros(batch * length, *shape)
        flat[self.index[self.valid]] = x.transpose(1, 2)[self.valid]
        return flat.unflatten(0, (batch, length)).transpose(1, 2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: MaskInputs,
    call: AttentionCall,
    _parts: Parts,
) -> Tensor:
    """Return the outputs [B, H, T, D]."""
    numbers, valid = None, masks.valid
    if masks.q_positions is not None:  # self-attention on padded or packed rows
        numbers, valid = _numbers(masks), None
    if torch.is_autocast_enabled(q.device.type):  # what torch does before its own kernels
        q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
    if call.value_dim != call.head_dim:
        q, k, v = fused.of_one_width(q, k, v)
    q, k, v = map(dense_rows, (q, k, v))
    pattern, position = text_of(call.pattern), text_of(call.position)
    out = _attend(q, k, v, valid, numbers, pattern, position, call.scale)[0]
    return out if call.value_dim >= call.head_dim else out[..., : call.value_dim]


def refuses(call: AttentionCall) -> list[str]:
    """Refuse what the flash kernel refuses, data that name pairs, and other devices."""
    reasons = fused.refuses(call) + refuses_transforms(call)
    if call.device != "cpu":
        reasons.append("it is built on the flash kernel of the CPU")
    if call.pairwise:
        reasons.append("mask= and the segments of two sequences name pairs one by one")
    return reasons


def _numbers(masks: MaskInputs) -> Tensor:
    """Return the document of each token [B, T], -1 = padding."""
    real = masks.valid
    numbers = masks.k_segments
    if numbers is None:
        numbers = torch.zeros_like(real, dtype=torch.long)
    return numbers.long() if real is None else numbers.long().masked_fill(~real, -1)


@torch.library.custom_op("suffice::blocked", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    numbers: Tensor | None,
    pattern: str,
    position: str,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, H, T, D] and the logarithms [B, H, T] of the rows' total weights.

    Args:
        q: [B, H, T, D]
        k: [B, G, S, D]
        v: [B, G, S, D]
        valid: bool [B, S], False = a hidden key.
        numbers: int [B, T], documents of self-attention; -1 = padding.
        pattern: as JSON.
        position: as JSON.
        scale: factor of the products.
    """
    call = _Call.of(q, k, v, valid, numbers, pattern, position, scale)
    q, exact = call.q, torch.promote_types(q.dtype, torch.float32)
    out, total = empty_rows_first(q, q.shape[3], exact), q.new_empty(q.shape[:3], dtype=exact)
    for heads, _, cut_, one in call.sets(FORWARD):
        sweep.forward(one, cut_, out[:, heads], total[:, heads])
    return call.put(out.to(q.dtype)), call.put(total).contiguous()


@_attend.register_fake
def _(q, k, v, valid, numbers, pattern, position, scale):
    del k, v, valid, numbers, pattern, position, scale
    exact = torch.promote_types(q.dtype, torch.float32)
    return empty_rows_first(q, q.shape[3]), q.new_empty(q.shape[:3], dtype=exact)


@torch.library.custom_op("suffice::blocked_backward", mutates_args=())
def _grads(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    valid: Tensor | None,
    numbers: Tensor | None,
    pattern: str,
    position: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; arguments as of `suffice::blocked`."""
    call = _Call.of(q, k, v, valid, numbers, pattern, position, scale)
    grad, out, total = map(call.take, (dense_rows(grad), out, total))
    total = total.masked_fill(total == -torch.inf, 0.0)
    exact = torch.promote_types(q.dtype, torch.float32)
    sums = [empty_rows_first(x, x.shape[3], exact).zero_() for x in (call.q, call.k, call.v)]
    for heads, groups, cut_, one in call.sets(BACKWARD):
        into = (sums[0][:, heads], sums[1][:, groups], sums[2][:, groups])
        sweep.backward(one, cut_, grad[:, heads], out[:, heads], total[:, heads], into)
    to_q, to_k, to_v = (call.put(x.to(q.dtype)) for x in sums)
    return to_q, to_k, to_v


@_grads.register_fake
def _(grad, q, k, v, out, total, valid, numbers, pattern, position, scale):
    del grad, out, total, valid, numbers, pattern, position, scale
    return tuple(empty_rows_first(x, x.shape[3], q.dtype) for x in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, valid, numbers, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, valid, numbers)


def _backward(ctx, grad, _):
    return *_grads(grad, *ctx.saved_tensors, *ctx.settings), *[None] * 5


torch.library.register_autograd("suffice::blocked", _backward, setup_context=_setup_context)


class _Call(NamedTuple):
    """One call of the operator, its rows one document each.

    Args:
        q: [N, H, L, D]
        k: [N, G, L or S, D]
        v: [N, G, L or S, D]
        valid: bool [N, L or S] or None.
        documents: where the rows come from; None = they are the batch's own.
        shape: B and T of the batch.
        pattern: of the heads.
        position: what it adds to the products.
        scale: factor of the products.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    valid: Tensor | None
    documents: Documents | None
    shape: tuple[int, int]
    pattern: Pattern
    position: Position
    scale: float

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        numbers: Tensor | None,
        pattern: str,
        position: str,
        scale: float,
    ) -> _Call:
        values = value_of(Pattern, pattern), value_of(Position, position), scale
        shape = q.shape[0], q.shape[2]
        if numbers is None:
            return cls(q, k, v, valid, None, shape, *values)
        documents = Documents.of(numbers)
        q, k, v = map(documents.take, (q, k, v))
        # what lies behind the end of a document is after all of its tokens
        valid = None if values[0].causal else documents.valid
        return cls(q, k, v, valid, documents, shape, *values)

    def take(self, x: Tensor) -> Tensor:
        """Return what belongs to the batch as it belongs to the rows."""
        return x if self.documents is None else self.documents.take(x)

    def put(self, x: Tensor) -> Tensor:
        """Return what belongs to the rows as it belongs to the batch."""
        return x if self.documents is None else self.documents.put(x, *self.shape)

    def sets(self, speed: float) -> Iterator[tuple[slice, slice, Cut, sweep.Call]]:
        """Give heads of one pattern with a key head each: heads, key heads, tiles and tensors."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        for pattern, heads, groups in _sets(self.pattern, self.q.shape[1], self.k.shape[1]):
            one = sweep.Call(
                self.q[:, heads],
                self.k[:, groups],
                self.v[:, groups],
                self.valid,
                self._bias(heads) if self.position.biases else None,
                keys - queries,
                self.scale,
            )
            yield heads, groups, cut(pattern, queries, keys, speed), one

    def _bias(self, heads: slice) -> sweep.Bias:
        def bias(q: Tensor, k: Tensor) -> Tensor:
            if self.position.relative and bool((q - q[:, :1] == q[:1] - q[:1, :1]).all()):
                same = (k - q[:, :1] == k[:1] - q[:1, :1]).all()
                q, k = (q[:1], k[:1]) if bool(same) else (q, k)
            added = self.position.bias(self.q.shape[1], q[:, None, :, None], k[:, None, None, :])
            return added.transpose(0, 1)[heads]

        return bias


@lru_cache(maxsize=64)
def _sets(pattern: Pattern, heads: int, groups: int) -> tuple[tuple[Pattern, slice, slice], ...]:
    """Return (pattern, heads, key heads): heads alike at regular steps, each with its key head."""
    shared = heads // groups
    found: dict[tuple[Pattern, int], list[int]] = {}
    for head, of_head in enumerate(pattern.of_heads(heads)):
        found.setdefault((of_head, head % shared), []).append(head)
    sets = []
    for (of_head, _), members in found.items():
        for first, last, step in _regular(members, shared):
            of_keys = slice(first // shared, last // shared + 1, step // shared)
            sets.append((of_head, slice(first, last + 1, step), of_keys))
    return tuple(sets)


def _regular(numbers: list[int], shared: int) -> Iterator[tuple[int, int, int]]:
    """Cut ascending numbers into (first, last, step), steps multiples of `shared`."""
    first = 0
    while first < len(numbers):
        step = numbers[first + 1] - numbers[first] if first + 1 < len(numbers) else shared
        last = first
        while last + 1 < len(numbers) and numbers[last + 1] - numbers[last] == step:
            last += 1
        yield numbers[first], numbers[last], step
        first = last + 1


BLOCKED = Op("blocked", "only the blocks the pattern touches, in fused tiles", attend, refuses)
