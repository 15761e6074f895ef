"""One sweep over the tiles of a cut pattern: softmax attention and its gradients.

torch's flash kernel computes a tile and returns the logarithm of each row's total weight. Where
several parts hold keys of the same query, their outputs are merged by these totals; the backward
kernel is then given the merged totals and outputs, which makes each part's gradients right.

Letters: B batch, H heads of queries and keys alike, T queries, S keys, D head width; n tiles of a
part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops.sparse.plan import Cut
from suffice.ops.sparse.tiles import Part

PIECE = 1 << 20  # numbers of one call's queries; more would leave the cache before they are used
GATHERED = 1 << 19  # numbers of one call's gathered keys
Bias = Callable[[Tensor, Tensor], Tensor]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Call(NamedTuple):
    """The tensors of one attention.

    Args:
        q: [B, H, T, D]
        k: [B, H, S, D]
        v: [B, H, S, D]
        valid: bool [B, S], False = a hidden key; None = all are real.
        bias: positions of queries [n, r] and keys [n, c] -> what is added to the scaled products
            [H, n, r, c]; None = nothing.
        offset: position of the first query.
        scale: factor of the products.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    valid: Tensor | None
    bias: Bias | None
    offset: int
    scale: float


class _Piece(NamedTuple):
    """Some batches, heads and tiles of a part: one call of the kernel."""

    batches: slice
    heads: slice
    part: Part
    flat: int  # the axis of [B, H, n] that holds one index

    def tiles(self, x: Tensor, of_keys: bool = False) -> Tensor:
        """Return what x [B, H, T, ...] holds of this piece: four axes, the last two kept."""
        run = self.part.keys if of_keys else self.part.queries
        return run.view(x[self.batches, self.heads]).squeeze(self.flat)


def forward(call: Call, cut: Cut, out: Tensor, total: Tensor) -> None:
    """Write the outputs and the logarithms of the rows' total weights.

    A query without any key gets output 0 and logarithm -inf.

    Args:
        call: the attention.
        cut: its tiles.
        out: [B, H, T, D], float32 or better where parts are merged.
        total: [B, H, T], float32 or better.
    """
    if not cut.whole or not all(cut.fresh):
        out.zero_()
        total.fill_(-torch.inf)
    for part, fresh in zip(cut.parts, cut.fresh, strict=True):
        for piece in _pieces(call, part):
            mask = _mask(call, piece)
            k, v = piece.tiles(call.k, True), piece.tiles(call.v, True)
            some, logs = _flash(
                piece.tiles(call.q), k, v, 0.0, False, attn_mask=mask, scale=call.scale
            )
            if mask is not None:
                logs = logs.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
            _merge(piece.tiles(out), piece.tiles(total), some, logs, fresh)


def backward(
    call: Call, cut: Cut, grad_out: Tensor, out: Tensor, total: Tensor, sums: tuple[Tensor, ...]
) -> None:
    """Add the gradients of q, k and v to three sums of their shapes.

    Args:
        call: as of the forward sweep.
        cut: likewise.
        grad_out: gradient of the outputs, [B, H, T, D].
        out: the outputs.
        total: the logarithms; finite for rows without any key, which weigh nothing either way.
        sums: for q, k and v, float32 or better.
    """
    for part in cut.parts:
        for piece in _pieces(call, part):
            queries = [piece.tiles(x) for x in (grad_out, call.q)]
            keys = [piece.tiles(x, True) for x in (call.k, call.v)]
            of_q, of_k, of_v = _flash_backward(
                *queries, *keys, piece.tiles(out), piece.tiles(total), 0.0, False,
                attn_mask=_mask(call, piece), scale=call.scale,
            )  # fmt: skip
            runs = piece.part.queries, piece.part.keys, piece.part.keys
            for into, run, grad in zip(sums, runs, (of_q, of_k, of_v), strict=True):
                tiles = grad.unsqueeze(piece.flat).to(into.dtype)
                run.add(into[piece.batches, piece.heads], tiles)


def _pieces(call: Call, part: Part) -> Iterator[_Piece]:
    """Cut a part into calls: the kernel takes two axes beside rows and features."""
    batch, heads, _, width = call.q.shape
    tiles = part.queries.tiles
    flat = min((0, 1, 2), key=lambda axis: (batch, heads, tiles)[axis])
    beside = max(1, batch * heads // max(1, (batch, heads, 1)[flat]))
    at_once = max(1, PIECE // (beside * part.queries.count * width))
    if not hasattr(part.keys, "tile_step"):
        at_once = min(at_once, max(1, GATHERED // (beside * part.keys.count * width)))
    at_once = 1 if flat == 2 else at_once
    for batches in _slices(batch, 1 if flat == 0 else batch):
        for some in _slices(heads, 1 if flat == 1 else heads):
            for span in _slices(tiles, at_once):
                yield _Piece(batches, some, part.some(span.start, span.stop), flat)


def _slices(length: int, size: int) -> Iterator[slice]:
    for first in range(0, length, size):
        yield slice(first, min(first + size, length))


def _mask(call: Call, piece: _Piece) -> Tensor | None:
    """Return what is added to the scaled products of a piece, -inf = hidden; None = nothing."""
    part = piece.part
    hidden = None if part.allowed is None else ~part.allowed[None, None]  # [1, 1, n, r, c]
    if call.valid is not None:
        real = part.keys.view(call.valid[piece.batches, None])[:, :, :, None]  # [B, 1, n, 1, c]
        hidden = ~real if hidden is None else hidden | ~real
    added = call.q.new_zeros(())
    if call.bias is not None:
        q, k = call.offset + part.queries.index(), part.keys.index()
        added = call.bias(q, k)[piece.heads].to(call.q.dtype)[None]
    elif hidden is None:
        return None
    mask = added if hidden is None else torch.where(hidden, -torch.inf, added)
    return mask.squeeze(piece.flat)


def _merge(out: Tensor, total: Tensor, some: Tensor, logs: Tensor, fresh: bool) -> None:
    """Add the output of some keys to the outputs of others, each by its share of the weight."""
    if fresh:
        out.copy_(some)
        total.copy_(logs)
        return
    both = torch.logaddexp(total, logs)
    finite = both.masked_fill(both == -torch.inf, 0.0)
    out.mul_((total - finite).exp()[..., None])
    out.addcmul_((logs - finite).exp()[..., None].to(out.dtype), some.to(out.dtype))
    total.copy_(both)
