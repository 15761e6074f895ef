"""Linear attention: sums of features along the sequence, O(T) time and memory.

Without a pattern two products: keys into a state, queries out of it. Causal: chunk by chunk, pairs
within a chunk and a state between chunks (`running_sums`). Sums are float32 or better. Features of
a piece of the sequence fit into the cache and are dropped; the backward pass computes them again,
except in a graph or under a transform.

Packed rows: a state serves the document it ends in. Without a pattern the keys of each document
precede its queries, so that a causal sum is the sum over all of them.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import FeatureMap
from suffice.kernels.base import CHUNK, columns
from suffice.ops import running_sums
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.op import Op, Parts, is_transformed, needs_gradient
from suffice.ops.reference import divided, divided_backward, warn_of_vanished
from suffice.ops.running_sums import Chunks, State, SumInputs
from suffice.patterns import Causal, Full

NUMBERS = 1 << 18  # features of a piece: 1 MiB; judged by benchmarks/mechanisms.py --case linear
CHUNKS = 32  # of a piece at most
NUMBERS_OF_GPU = 1 << 26  # there the kernels that are started cost the time, not the cache


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    causal = type(call.pattern) is Causal
    with torch.autocast(q.device.type, enabled=False):  # it would round sums to half
        if masks.k_segments is not None and not causal:
            return _attend_within_documents(q, k, v, masks, call, parts.features)
        early = max(call.queries - call.keys, 0) if causal else 0  # queries before the first key
        data = KeyMasks(masks.valid, masks.k_segments)
        out = _attend(q[:, :, early:], k, v, data, call, parts.features, causal=causal)
        return F.pad(out, (0, 0, early, 0)) if early else out


def refuses(call: AttentionCall) -> list[str]:
    """Refuse kernels that weigh pairs, what restricts single pairs, and empty input."""
    if call.kernel.lane == "pairs":
        return [f"{type(call.kernel).__name__} weighs pairs: there are no features to sum"]
    reasons = []
    if type(call.pattern) not in (Full, Causal):
        reasons.append(f"sums over keys know Full and Causal, not {call.pattern!r}")
    if call.pairwise:
        reasons.append("mask= and the segments of two sequences name pairs one by one")
    if call.dropping:
        reasons.append("there are no weights to drop")
    if call.queries * call.keys == 0:
        reasons.append("there is no query or no key")
    return reasons


SCAN = Op(
    "scan", "sums of features along the sequence, in time that grows with it", attend, refuses
)


def stream(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    call: AttentionCall,
    features: FeatureMap,
    before: State | None,
) -> tuple[Tensor, State]:
    """Return the outputs of new positions that see themselves and all before, and the state after.

    q is [B, H, T, D], k [B, G, T, D], v [B, G, T, E], valid bool [B, T]; padding leaves the state
    as it is.
    """
    with torch.autocast(q.device.type, enabled=False):
        length = q.shape[2]
        compiling = torch.compiler.is_compiling()
        if length > 1 and compiling:  # whole chunks, so that one graph serves all lengths
            if valid is None:
                valid = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device)
            more = -length % CHUNK
            q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
            valid = F.pad(valid, (0, more))
            positions = q.shape[2]
        else:
            _, positions = _in_cache(q, k, call.kernel.num_features(call.head_dim))
        steps = _steps(q.shape[2], q.shape[2], positions, causal=True)
        schedule = _Schedule(q.shape[0], steps, KeyMasks(valid, None), v.shape[3], features)
        state, outs = before, []
        for step in steps:
            inputs, chunks = schedule.inputs(step, slice(None), q, k, v)
            result, state = schedule.run(step._replace(last=False), inputs, state, chunks)
            out, totals = result
            outs.append(chunks.join(out))
            if not compiling:
                schedule.check(step, slice(None), chunks.join(totals))
        if length > 1 or compiling:  # else it may be a part of the states of all chunks
            state = state.copied()
        return torch.cat(outs, dim=2)[:, :, :length].to(q.dtype), state


def _attend_within_documents(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, features: FeatureMap
) -> Tensor:
    """Let every query see the keys of its document: in a causal sum of keys, then queries."""
    length = q.shape[2]
    order = masks.k_segments.repeat(1, 2).argsort(dim=1, stable=True)  # keys before queries
    is_key, tokens = order < length, order % length
    valid = is_key if masks.valid is None else is_key & masks.valid.gather(1, tokens)
    ordered = (x.take_along_dim(tokens[:, None, :, None], dim=2) for x in (q, k, v))
    data = KeyMasks(valid, masks.k_segments.gather(1, tokens))
    out = _attend(*ordered, data, call, features, causal=True)
    places = order.argsort(dim=1)[:, length:]
    return out.take_along_dim(places[:, None, :, None], dim=2)


class KeyMasks(NamedTuple):
    """Masked keys, and the documents of the keys."""

    valid: Tensor | None  # bool [B, S], False = masked; None: all are real
    documents: Tensor | None  # int [B, S], which rise along a row; None: one


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    data: KeyMasks,
    call: AttentionCall,
    features: FeatureMap,
    *,
    causal: bool,
) -> Tensor:
    if is_transformed():
        return _attend_in_one_piece(q, k, v, data, features, causal=causal)
    learned = [p for p in features.parameters() if p.requires_grad]
    rows, positions = _in_cache(q, k, call.kernel.num_features(call.head_dim))
    steps = _steps(q.shape[2], k.shape[2], positions, causal)
    schedule = _Schedule(rows, steps, data, v.shape[3], features)
    if needs_gradient(q, k, v, *learned):
        return _Recomputed.apply(schedule, q, k, v, *learned)
    return _forward(schedule, q, k, v).to(q.dtype)


def _in_cache(q: Tensor, k: Tensor, features: int) -> tuple[int, int]:
    batch, heads, queries, _ = q.shape
    numbers = heads * features
    most, most_chunks = NUMBERS, CHUNKS
    if q.is_cuda:
        most, most_chunks = NUMBERS_OF_GPU, NUMBERS_OF_GPU // CHUNK
    rows = most // (numbers * min(max(queries, k.shape[2]), CHUNK))
    rows = min(max(rows, 1), batch)
    chunks = most // (rows * numbers * CHUNK)
    return rows, min(max(chunks, 1), most_chunks) * CHUNK


Span = tuple[int, int]  # the first position and the one behind the last


class ScanStep(NamedTuple):
    """One piece of a sequence: queries and keys, keys only, or queries that see all keys so far."""

    queries: Span | None
    keys: Span | None
    chunk: int = 0  # positions of a chunk, where there are both
    last: bool = False  # no later step needs a state


def _steps(queries: int, keys: int, positions: int, causal: bool) -> tuple[ScanStep, ...]:
    if not causal:
        return (
            *(ScanStep(None, span) for span in _spans(0, keys, positions)),
            *(ScanStep(span, None) for span in _spans(0, queries, positions)),
        )
    early = keys - queries
    rest = queries % CHUNK
    end = queries - rest  # of the full chunks
    steps = [ScanStep(None, span) for span in _spans(0, early, positions)]
    for a, b in _spans(0, end, positions):
        steps.append(ScanStep((a, b), (early + a, early + b), CHUNK, last=b == queries))
    if end < queries:
        steps.append(ScanStep((end, queries), (early + end, keys), rest, last=True))
    return tuple(steps)


def _spans(start: int, stop: int, positions: int) -> list[Span]:
    if stop - start <= positions:  # one span, whose ends may be symbols
        return [(start, stop)] if stop > start else []
    return [(a, min(a + positions, stop)) for a in range(start, stop, positions)]


@dataclass(frozen=True)
class _Schedule:
    """The order in which the pieces of a batch are computed."""

    rows: int  # of the batch that are computed together
    steps: tuple[ScanStep, ...]  # for each of them
    data: KeyMasks
    value_dim: int
    features: FeatureMap

    def batches(self, batch: int) -> list[slice]:
        return [slice(b, min(b + self.rows, batch)) for b in range(0, batch, self.rows)]

    def inputs(
        self, step: ScanStep, rows: slice, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[SumInputs, Chunks]:
        groups = k.shape[1]
        q = None if step.queries is None else q[rows, :, slice(*step.queries)]
        if step.keys is None:
            inputs = SumInputs(q, None, None)
        else:
            keys = slice(*step.keys)
            data = (None if x is None else x[rows, keys] for x in self.data)
            inputs = SumInputs(q, k[rows, :, keys], v[rows, :, keys], *data)
        batch, _, length, _ = (inputs.k if q is None else q).shape
        chunk = step.chunk or length
        return inputs, Chunks(batch, groups, length // chunk, chunk)

    def run(
        self, step: ScanStep, inputs: SumInputs, state: State | None, chunks: Chunks
    ) -> tuple[tuple[Tensor, Tensor] | None, State | None]:
        """Return outputs [M, rows, E] and totals of a step's queries, and the state after it."""
        part = running_sums.featurize(inputs, state, self.features, chunks)
        if inputs.q is None:
            return None, running_sums.add(part, state, chunks)
        if inputs.k is None:
            sums = running_sums.query(part, state)
        else:
            sums, state = running_sums.scan(part, state, chunks, last=step.last)
        return divided(sums, self.features.floor, self.value_dim), state

    def check(self, step: ScanStep, rows: slice, totals: Tensor) -> None:
        """Warn if the products [B, H, L, 1] of a step's queries vanish, which see their own key."""
        seen = self.data.valid
        if seen is not None:
            seen = seen[rows] if step.keys is None else seen[rows, slice(*step.keys)]
            seen = (seen.any(1, keepdim=True) if step.keys is None else seen)[:, None, :, None]
        warn_of_vanished(totals, seen, self.features.floor)


def _attend_in_one_piece(
    q: Tensor, k: Tensor, v: Tensor, data: KeyMasks, features: FeatureMap, *, causal: bool
) -> Tensor:
    """Return the outputs by operations that torch can trace, the same for all lengths.

    A last chunk is filled up, as no earlier position reads what follows it.
    """
    queries, dtype = q.shape[2], q.dtype
    if causal:
        more = -queries % CHUNK
        q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
        data = KeyMasks(*(None if x is None else F.pad(x, (0, more)) for x in data))
    steps = _steps(q.shape[2], k.shape[2], max(q.shape[2], k.shape[2]), causal)
    schedule = _Schedule(q.shape[0], steps, data, v.shape[3], features)
    state, outs = None, []
    for step in steps:
        inputs, chunks = schedule.inputs(step, slice(None), q, k, v)
        result, state = schedule.run(step, inputs, state, chunks)
        if result is not None:
            outs.append(chunks.join(result[0]))
    out = torch.cat(outs, dim=2) if len(outs) > 1 else outs[0]
    return out.to(dtype)[:, :, :queries]


class Saved(NamedTuple):
    """The state before a step and the totals of its queries, for its backward pass."""

    state: State | None
    totals: Tensor | None


@torch.no_grad()
def _forward(
    schedule: _Schedule, q: Tensor, k: Tensor, v: Tensor, saved: list[Saved] | None = None
) -> Tensor:
    """Return the outputs [B, H, T, E] in float32 or better; append to `saved`, if it is given."""
    batch, heads, queries, _ = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    outs = q.new_empty(batch, queries, heads, v.shape[3], dtype=exact).transpose(1, 2)
    for rows in schedule.batches(batch):
        state = None
        for step in schedule.steps:
            before, totals = state, None
            inputs, chunks = schedule.inputs(step, rows, q, k, v)
            result, state = schedule.run(step, inputs, state, chunks)
            if result is not None:
                out, totals = result
                outs[rows, :, slice(*step.queries)] = chunks.join(out)
                schedule.check(step, rows, chunks.join(totals))
            if saved is not None:  # copies, as views would keep the states of all chunks alive
                if before is not None:
                    before = State(before.sums.clone(), before.stabilizer)
                saved.append(Saved(before, None if totals is None else totals.clone()))
    return outs


class _Recomputed(torch.autograd.Function):
    """The forward pass with a gradient, which computes each step again, the last one first."""

    @staticmethod
    def forward(ctx, schedule, q, k, v, *learned):
        ctx.schedule, ctx.saved = schedule, []
        out = _forward(schedule, q, k, v, ctx.saved)
        ctx.save_for_backward(out, q, k, v, *learned)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        with torch.autocast(grad.device.type, enabled=False):  # a backward pass may run inside
            return _Recomputed.gradients(ctx, grad)

    @staticmethod
    def gradients(ctx, grad: Tensor):  # noqa: ANN205 - torch's signature
        """Return what `backward` does, where autocast is off."""
        out, q, k, v, *learned = ctx.saved_tensors
        schedule, saved = ctx.schedule, list(ctx.saved)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        of_learned = [torch.zeros_like(x) for x in learned]
        for rows in reversed(schedule.batches(q.shape[0])):
            of_state = None
            for step in reversed(schedule.steps):
                inputs, chunks = schedule.inputs(step, rows, q, k, v)
                outs = (None, None)
                if step.queries is not None:
                    place = (rows, slice(None), slice(*step.queries))
                    outs = grad[place], out[place]
                parts, of_state, more = _step_backward(
                    schedule, inputs, chunks, saved.pop(), learned, *outs, of_state
                )
                spans = step.queries, step.keys, step.keys
                for total, span, part in zip(grads, spans, parts, strict=True):
                    if span is not None:
                        total[rows, :, slice(*span)] = part
                for total, part in zip(of_learned, more, strict=True):
                    total += part
        return None, *grads, *of_learned


def _step_backward(
    schedule: _Schedule,
    inputs: SumInputs,
    chunks: Chunks,
    saved: Saved,
    learned: list[Tensor],
    grad: Tensor | None,
    out: Tensor | None,
    of_state: Tensor | None,
) -> tuple[list[Tensor | None], Tensor | None, list[Tensor]]:
    """Return the gradients of a step's q, k and v, of the state before, and of learned parameters.

    `grad` [B, H, L, E] is that of its outputs, `of_state` that of the state after it.
    """
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs[:2]]
    with torch.enable_grad():
        again = SumInputs(*leaves, *inputs[2:])
        part = running_sums.featurize(again, saved.state, schedule.features, chunks)
    of_sums = None
    if grad is not None:
        grad, out = chunks.split(grad), chunks.split(out)
        width = columns(schedule.value_dim)
        of_sums = divided_backward(grad, out, saved.totals, schedule.features.floor, width)
    if part.queries is None:
        grads = running_sums.add_backward(part, saved.state, chunks, of_state)
    elif part.keys is None:
        grads = running_sums.query_backward(part, saved.state, of_sums, of_state)
    else:
        grads = running_sums.scan_backward(part, saved.state, chunks, of_sums, of_state)
    sources = [*_present(leaves), *learned]
    of_sources = iter(
        torch.autograd.grad(
            _present(part[:2]), sources, _present(grads[:2]), materialize_grads=True
        )
    )
    parts = [None if x is None else next(of_sources) for x in leaves]
    of_v = None
    if grads.values is not None:
        of_v = chunks.scaled(grads.values, part.factors.key)[..., : schedule.value_dim]
        of_v = chunks.join(of_v)
    return [*parts, of_v], grads.state, list(of_sources)


def _present(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]
