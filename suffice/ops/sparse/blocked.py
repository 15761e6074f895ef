"""Sparse softmax attention that computes only the blocks a pattern touches, with gradients.

Tiles of queries and keys (`cut`) go through torch's flash kernel, which returns the logarithm of
each row's total weight. Where several parts hold keys of the same query, their outputs are merged
by these totals; the backward kernel gets the merged totals and outputs, which makes the gradients
of each part right. Any pattern, any length, O(T) memory for patterns that touch O(T) pairs.

Eager calls run it directly. Where torch has to see the call it is a registered operator: one node
of a compiled graph, whatever the lengths.

Letters: B batch, N rows of one document each, H query heads, G key/value heads, T queries, S keys,
L positions of a document, D head width; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.ops import fused
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import (
    Op,
    Parts,
    dense_rows,
    empty_rows_first,
    is_traced,
    needs_gradient,
    refuses_transforms,
    register_attention,
    text_of,
    value_of,
)
from suffice.ops.sparse.plan import BACKWARD, FORWARD, Cut, cut
from suffice.ops.sparse.tiles import Gathered, TileSet
from suffice.patterns import Pattern
from suffice.positions import Position

PIECE = 1 << 20  # numbers of one call's queries; more would leave the cache before they are used
GATHERED = 1 << 19  # numbers of one call's gathered keys

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, _parts: Parts
) -> Tensor:
    numbers, valid = None, masks.valid
    if masks.q_positions is not None:  # self-attention on padded or packed rows
        numbers, valid = masks.numbers(), None
    if torch.is_autocast_enabled(q.device.type):  # what torch does before its own kernels
        q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
    if call.value_dim != call.head_dim:
        q, k, v = fused.of_one_width(q, k, v)
    q, k, v = map(dense_rows, (q, k, v))
    axes = call.pattern, call.position, call.scale
    if is_traced():
        texts = text_of(call.pattern), text_of(call.position)
        out = _attend(q, k, v, valid, numbers, *texts, call.scale)[0]
    elif needs_gradient(q, k, v):
        out = _Attend.apply(q, k, v, valid, numbers, *axes)
    else:
        out = _compute(q, k, v, valid, numbers, *axes)[0]
    return out if call.value_dim >= call.head_dim else out[..., : call.value_dim]


def refuses(call: AttentionCall) -> list[str]:
    """Refuse what the flash kernel refuses, data that name pairs, and other devices."""
    reasons = fused.refuses(call) + refuses_transforms(call)
    if call.device != "cpu":
        reasons.append("it is built on the flash kernel of the CPU")
    if call.pairwise:
        reasons.append("mask= and the segments of two sequences name pairs one by one")
    return reasons


BLOCKED = Op("blocked", "only the blocks the pattern touches, in fused tiles", attend, refuses)


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

    valid is bool [B, S], numbers int [B, T] the documents (-1 = padding); the pattern and the
    position are JSON.
    """
    axes = value_of(Pattern, pattern), value_of(Position, position), scale
    return _compute(q, k, v, valid, numbers, *axes)


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    numbers: Tensor | None,
    pattern: Pattern,
    position: Position,
    scale: float,
) -> tuple[Tensor, Tensor]:
    batch = _Batch.of(q, k, v, valid, numbers, pattern, position, scale)
    q, exact = batch.q, torch.promote_types(q.dtype, torch.float32)
    out, total = empty_rows_first(q, q.shape[3], exact), q.new_empty(q.shape[:3], dtype=exact)
    for heads, _, tiles, inputs in batch.head_sets(FORWARD):
        _forward(inputs, tiles, out[:, heads], total[:, heads])
    return batch.put(out.to(q.dtype)), batch.put(total).contiguous()


@torch.library.custom_op("suffice::blocked_backward", mutates_args=())
def _attend_backward(
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
    axes = value_of(Pattern, pattern), value_of(Position, position), scale
    return _differentiate(grad, q, k, v, out, total, valid, numbers, *axes)


def _differentiate(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    valid: Tensor | None,
    numbers: Tensor | None,
    pattern: Pattern,
    position: Position,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    batch = _Batch.of(q, k, v, valid, numbers, pattern, position, scale)
    grad, out, total = map(batch.take, (dense_rows(grad), out, total))
    total = total.masked_fill(total == -torch.inf, 0.0)
    exact = torch.promote_types(q.dtype, torch.float32)
    sums = [empty_rows_first(x, x.shape[3], exact).zero_() for x in (batch.q, batch.k, batch.v)]
    for heads, groups, tiles, inputs in batch.head_sets(BACKWARD):
        into = (sums[0][:, heads], sums[1][:, groups], sums[2][:, groups])
        _backward(inputs, tiles, grad[:, heads], out[:, heads], total[:, heads], into)
    of_q, of_k, of_v = (batch.put(x.to(q.dtype)) for x in sums)
    return of_q, of_k, of_v


register_attention(_attend, _attend_backward)


class _Attend(torch.autograd.Function):
    """The same without the operators, whose first call imports 70 MiB of torch's compiler."""

    @staticmethod
    def forward(ctx, q, k, v, valid, numbers, pattern, position, scale):
        out, total = _compute(q, k, v, valid, numbers, pattern, position, scale)
        ctx.save_for_backward(q, k, v, out, total, valid, numbers)
        ctx.axes = pattern, position, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return *_differentiate(grad, *ctx.saved_tensors, *ctx.axes), *[None] * 5


@dataclass(frozen=True)
class DocumentRows:
    """The tokens of each document of a batch."""

    index: Tensor  # int [N, L], place of each token in the flattened [B * T]; 0 behind the end
    valid: Tensor  # bool [N, L], False behind the end of a document

    @classmethod
    def of(cls, numbers: Tensor) -> DocumentRows:
        """Return the documents that numbers [B, T] mark; only padding, -1, interrupts one."""
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
        flat = x.new_zeros(batch * length, x.shape[1], *x.shape[3:])
        flat[self.index[self.valid]] = x.transpose(1, 2)[self.valid]
        return flat.unflatten(0, (batch, length)).transpose(1, 2)


class _Inputs(NamedTuple):
    q: Tensor  # [N, H, T, D]
    k: Tensor  # [N, H, S, D]
    v: Tensor  # [N, H, S, D]
    valid: Tensor | None  # bool [N, S], False = a hidden key
    # positions of queries [n, r] and keys [n, c] -> added to the scaled products [H, n, r, c]
    bias: Callable[[Tensor, Tensor], Tensor] | None
    offset: int  # position of the first query
    scale: float


class _Batch(NamedTuple):
    q: Tensor  # [N, H, T or L, D]
    k: Tensor  # [N, G, S or L, D]
    v: Tensor  # [N, G, S or L, D]
    valid: Tensor | None  # bool [N, S or L]
    documents: DocumentRows | None  # None = rows are those of the batch
    shape: tuple[int, int]  # B and T of the batch
    pattern: Pattern  # of all heads
    position: Position  # its bias is added to the products
    scale: float

    @classmethod
    def of(
        cls, q, k, v, valid, numbers, pattern: Pattern, position: Position, scale: float
    ) -> _Batch:
        values = pattern, position, scale
        shape = q.shape[0], q.shape[2]
        if numbers is None:
            return cls(q, k, v, valid, None, shape, *values)
        documents = DocumentRows.of(numbers)
        q, k, v = map(documents.take, (q, k, v))
        # what lies behind the end of a document is after all of its tokens
        valid = None if values[0].causal else documents.valid
        return cls(q, k, v, valid, documents, shape, *values)

    def take(self, x: Tensor) -> Tensor:
        return x if self.documents is None else self.documents.take(x)

    def put(self, x: Tensor) -> Tensor:
        return x if self.documents is None else self.documents.put(x, *self.shape)

    def head_sets(self, speed: float) -> Iterator[tuple[slice, slice, Cut, _Inputs]]:
        """Yield heads of one pattern with their key heads, tiles and inputs."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        for pattern, heads, groups in _head_sets(self.pattern, self.q.shape[1], self.k.shape[1]):
            inputs = _Inputs(
                self.q[:, heads],
                self.k[:, groups],
                self.v[:, groups],
                self.valid,
                self._bias(heads) if self.position.biases else None,
                keys - queries,
                self.scale,
            )
            yield heads, groups, cut(pattern, queries, keys, speed), inputs

    def _bias(self, heads: slice) -> Callable[[Tensor, Tensor], Tensor]:
        def bias(q: Tensor, k: Tensor) -> Tensor:
            if self.position.relative and bool((q - q[:, :1] == q[:1] - q[:1, :1]).all()):
                same = (k - q[:, :1] == k[:1] - q[:1, :1]).all()
                q, k = (q[:1], k[:1]) if bool(same) else (q, k)
            added = self.position.bias(self.q.shape[1], q[:, None, :, None], k[:, None, None, :])
            return added.transpose(0, 1)[heads]

        return bias


@lru_cache(maxsize=64)
def _head_sets(
    pattern: Pattern, heads: int, groups: int
) -> tuple[tuple[Pattern, slice, slice], ...]:
    """Return (pattern, heads, key heads): heads alike at regular steps, each with its key head."""
    shared = heads // groups
    members: dict[tuple[Pattern, int], list[int]] = {}
    for head, head_pattern in enumerate(pattern.of_heads(heads)):
        members.setdefault((head_pattern, head % shared), []).append(head)
    sets = []
    for (head_pattern, _), numbers in members.items():
        for first, last, step in _regular(numbers, shared):
            key_heads = slice(first // shared, last // shared + 1, step // shared)
            sets.append((head_pattern, slice(first, last + 1, step), key_heads))
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


def _forward(inputs: _Inputs, cut: Cut, out: Tensor, total: Tensor) -> None:
    """Write the outputs [N, H, T, D] and the logarithms [N, H, T] of the rows' total weights.

    Both are float32 or better. A query without any key gets output 0 and logarithm -inf.
    """
    if not cut.complete or not all(cut.fresh):
        out.zero_()
        total.fill_(-torch.inf)
    for part, fresh in zip(cut.parts, cut.fresh, strict=True):
        for piece in _pieces(inputs, part):
            mask = _mask(inputs, piece)
            k, v = piece.keys(inputs.k), piece.keys(inputs.v)
            part_out, logs = _flash(
                piece.queries(inputs.q), k, v, 0.0, False, attn_mask=mask, scale=inputs.scale
            )
            if mask is not None:
                logs = logs.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
            _merge(piece.queries(out), piece.queries(total), part_out, logs, fresh)


def _merge(out: Tensor, total: Tensor, part_out: Tensor, logs: Tensor, fresh: bool) -> None:
    """Add the outputs for some keys to those for others, each by its share of the weight."""
    if fresh:
        out.copy_(part_out)
        total.copy_(logs)
        return
    both = torch.logaddexp(total, logs)
    finite = both.masked_fill(both == -torch.inf, 0.0)
    out.mul_((total - finite).exp()[..., None])
    out.addcmul_((logs - finite).exp()[..., None].to(out.dtype), part_out.to(out.dtype))
    total.copy_(both)


def _backward(
    inputs: _Inputs, cut: Cut, grad: Tensor, out: Tensor, total: Tensor, sums: tuple[Tensor, ...]
) -> None:
    """Add the gradients of q, k and v to three sums of their shapes, float32 or better.

    `total` is finite for rows without any key, which weigh nothing either way.
    """
    for part in cut.parts:
        for piece in _pieces(inputs, part):
            of_q, of_k, of_v = _flash_backward(
                piece.queries(grad), piece.queries(inputs.q), piece.keys(inputs.k),
                piece.keys(inputs.v), piece.queries(out), piece.queries(total), 0.0, False,
                attn_mask=_mask(inputs, piece), scale=inputs.scale,
            )  # fmt: skip
            runs = piece.part.queries, piece.part.keys, piece.part.keys
            for into, run, grads in zip(sums, runs, (of_q, of_k, of_v), strict=True):
                tiles = grads.unsqueeze(piece.flat).to(into.dtype)
                run.add(into[piece.rows, piece.heads], tiles)


class _Piece(NamedTuple):
    rows: slice
    heads: slice
    part: TileSet
    flat: int  # the axis of [N, H, n] that holds one index

    def queries(self, x: Tensor) -> Tensor:
        """Return the tiles of x [N, H, T, ...], with four axes, the last two kept."""
        return self.part.queries.view(x[self.rows, self.heads]).squeeze(self.flat)

    def keys(self, x: Tensor) -> Tensor:
        return self.part.keys.view(x[self.rows, self.heads]).squeeze(self.flat)


def _pieces(inputs: _Inputs, part: TileSet) -> Iterator[_Piece]:
    """Cut a part into calls: the kernel takes two axes besides positions and features."""
    rows, heads, _, width = inputs.q.shape
    tiles = part.queries.tiles
    flat = min((0, 1, 2), key=lambda axis: (rows, heads, tiles)[axis])
    others = max(1, rows * heads // max(1, (rows, heads, 1)[flat]))
    at_once = max(1, PIECE // (others * part.queries.count * width))
    if isinstance(part.keys, Gathered):
        at_once = min(at_once, max(1, GATHERED // (others * part.keys.count * width)))
    at_once = 1 if flat == 2 else at_once
    for row_slice in _slices(rows, 1 if flat == 0 else rows):
        for head_slice in _slices(heads, 1 if flat == 1 else heads):
            for span in _slices(tiles, at_once):
                yield _Piece(row_slice, head_slice, part.narrow(span.start, span.stop), flat)


def _slices(length: int, size: int) -> Iterator[slice]:
    for first in range(0, length, size):
        yield slice(first, min(first + size, length))


def _mask(inputs: _Inputs, piece: _Piece) -> Tensor | None:
    """Return the terms added to the scaled products of a piece, -inf = hidden; None: no terms."""
    part = piece.part
    hidden = None if part.allowed is None else ~part.allowed[None, None]  # [1, 1, n, r, c]
    if inputs.valid is not None:
        real = part.keys.view(inputs.valid[piece.rows, None])[:, :, :, None]  # [N, 1, n, 1, c]
        hidden = ~real if hidden is None else hidden | ~real
    added = inputs.q.new_zeros(())
    if inputs.bias is not None:
        q, k = inputs.offset + part.queries.index(), part.keys.index()
        added = inputs.bias(q, k)[piece.heads].to(inputs.q.dtype)[None]
    elif hidden is None:
        return None
    mask = added if hidden is None else torch.where(hidden, -torch.inf, added)
    return dense_rows(mask.squeeze(piece.flat))  # torch 2.6 reads other strides wrongly
