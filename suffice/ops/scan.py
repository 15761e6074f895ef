"""Sums of features along the sequence, for kernels that weigh no pairs: O(T) time and memory.

Without a pattern two products: keys into a state, queries out of it. Causal: chunk by chunk, pairs
within a chunk and a state between chunks (`running`). Sums are float32 or better. What a stretch of
the sequence makes, features among it, fits into the cache and is dropped; for the backward pass it
is made again (`replay`), but not where torch looks into the operations: compiled, transformed.

Packed rows: a state serves the document it ends in. Without a pattern each document's keys are
laid before its queries, which makes the causal sum the whole one.

Letters: B batch, H query heads, G key/value heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

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
from suffice.ops.op import Op, Parts, is_transformed
from suffice.ops.reference import divided, slope_of_divided
from suffice.ops.running_sums import Cut, State, Stretch
from suffice.patterns import Causal, Full

Span = tuple[int, int]


class Step(NamedTuple):
    """One stretch.

    Args:
        queries: first and behind the last position of q; None = keys only.
        keys: the same of k and v; None = queries only, which see all keys so far.
        chunk: positions of a chunk, where there are both.
        last: True if no later step needs a state.
    """

    queries: Span | None
    keys: Span | None
    chunk: int = 0
    last: bool = False

    @property
    def spans(self) -> tuple[Span | None, Span | None, Span | None]:
        """Of q, k and v."""
        return self.queries, self.keys, self.keys


class Data(NamedTuple):
    """What hides and parts the keys.

    Args:
        seen: bool [B, S], False = hidden; None = all are seen.
        runs: int [B, S], documents, which rise along a row; None = one.
    """

    seen: Tensor | None
    runs: Tensor | None


@dataclass(frozen=True)
class Plan:
    """What is computed in which order.

    Args:
        rows: rows of a batch that are computed together.
        steps: for each of them.
        data: of the keys.
        value_dim: E.
        features: phi.
    """

    rows: int
    steps: tuple[Step, ...]
    data: Data
    value_dim: int
    features: FeatureMap

    def batches(self, batch: int) -> list[slice]:
        """Return the rows computed together."""
        return [slice(b, min(b + self.rows, batch)) for b in range(0, batch, self.rows)]

    def stretch(self, step: Step, rows: slice, q: Tensor, k: Tensor, v: Tensor) -> Stretch:
        """Return the inputs of a step."""
        queries, keys = (None if s is None else slice(*s) for s in step[:2])
        q = None if queries is None else q[rows, :, queries]
        if keys is None:
            return Stretch(q, None, None)
        known = (None if x is None else x[rows, keys] for x in self.data)
        return Stretch(q, k[rows, :, keys], v[rows, :, keys], *known)

    def cut(self, step: Step, stretch: Stretch, groups: int) -> Cut:
        """Return how the inputs of a step are cut."""
        batch, _, length, _ = (stretch.k if stretch.q is None else stretch.q).shape
        chunk = step.chunk or length
        return Cut(batch, groups, length // chunk, chunk)

    def run(
        self, step: Step, stretch: Stretch, state: State | None, cut: Cut
    ) -> tuple[tuple[Tensor, Tensor] | None, State | None]:
        """Return outputs [M, rows, E] and totals of a step's queries, and the state after it."""
        part = running_sums.read(stretch, state, self.features, cut)
        if stretch.q is None:
            return None, running_sums.add(part, state, cut)
        if stretch.k is None:
            sums = running_sums.ask(part, state)
        else:
            sums, state = running_sums.scan(part, state, cut, last=step.last)
        return divided(sums, self.features.floor, self.value_dim), state


def compose(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the outputs [B, H, T, E], as operations torch can look into."""
    outs = []
    for rows in plan.batches(q.shape[0]):
        state, parts = None, []
        for step in plan.steps:
            stretch = plan.stretch(step, rows, q, k, v)
            cut = plan.cut(step, stretch, k.shape[1])
            found, state = plan.run(step, stretch, state, cut)
            if found is not None:
                parts.append(cut.together(found[0]))
        outs.append(torch.cat(parts, dim=2) if len(parts) > 1 else parts[0])
    return (torch.cat(outs) if len(outs) > 1 else outs[0]).to(q.dtype)


class Note(NamedTuple):
    """What the backward pass of a step reads beside the inputs: the state before it, the totals."""

    state: State | None
    totals: Tensor | None


@torch.no_grad()
def forward(plan: Plan, q: Tensor, k: Tensor, v: Tensor, notes: list[Note] | None = None) -> Tensor:
    """Return the outputs [B, H, T, E] in float32 or better.

    Takes a note of each step if there is a list for them.
    """
    batch, heads, queries, _ = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    result = q.new_empty(batch, queries, heads, v.shape[3], dtype=exact).transpose(1, 2)
    for rows in plan.batches(batch):
        state = None
        for step in plan.steps:
            before, totals = state, None
            stretch = plan.stretch(step, rows, q, k, v)
            cut = plan.cut(step, stretch, k.shape[1])
            found, state = plan.run(step, stretch, state, cut)
            if found is not None:
                out, totals = found
                result[rows, :, slice(*step.queries)] = cut.together(out)
            if notes is not None:
                notes.append(_noted(before, totals))
    return result


def _noted(state: State | None, totals: Tensor | None) -> Note:
    """Copy what is needed out of what is not."""
    if state is not None:
        state = State(state.sums.clone(), state.mark)
    return Note(state, None if totals is None else totals.clone())


class Replay(torch.autograd.Function):
    """`forward` with a gradient."""

    @staticmethod
    def forward(ctx, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor):  # noqa: ANN001, ANN205
        """Compute, and take notes."""
        ctx.plan, ctx.notes = plan, []
        out = forward(plan, q, k, v, ctx.notes)
        ctx.save_for_backward(out, q, k, v, *learned)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # noqa: ANN001, ANN205
        """Compute each step again, the last one first."""
        out, q, k, v, *learned = ctx.saved_tensors
        plan, notes = ctx.plan, list(ctx.notes)
        found = [torch.empty_like(x) for x in (q, k, v)]
        totals = [torch.zeros_like(x) for x in learned]
        for rows in reversed(plan.batches(q.shape[0])):
            to_state = None
            for step in reversed(plan.steps):
                again = _Again(plan, step, plan.stretch(step, rows, q, k, v), notes.pop(), learned)
                if step.queries is not None:
                    place = (rows, slice(None), slice(*step.queries))
                    again.gradient(gradient[place], out[place])
                parts, to_state, more = again.slopes(to_state)
                for slope, span, part in zip(found, step.spans, parts, strict=True):
                    if span is not None:
                        slope[rows, :, slice(*span)] = part
                for total, part in zip(totals, more, strict=True):
                    total += part
        return None, *found, *totals


class _Again:
    """A step read once more, so that it can be differentiated."""

    def __init__(
        self, plan: Plan, step: Step, stretch: Stretch, note: Note, learned: list[Tensor]
    ) -> None:
        self.plan, self.step, self.note, self.learned = plan, step, note, learned
        groups = stretch.k.shape[1] if stretch.k is not None else note.state.sums.shape[1]
        self.cut = plan.cut(step, stretch, groups)
        self.to_sums: Tensor | None = None
        self.inputs = [None if x is None else x.detach().requires_grad_() for x in stretch[:2]]
        again = Stretch(*self.inputs, *stretch[2:])
        with torch.enable_grad():
            self.part = running_sums.read(again, note.state, plan.features, self.cut)

    def gradient(self, gradient: Tensor, out: Tensor) -> None:
        """Take the gradient of the outputs [B, H, L, E]."""
        gradient, out = self.cut.apart(gradient), self.cut.apart(out)
        width = columns(self.plan.value_dim)
        floor = self.plan.features.floor
        self.to_sums = slope_of_divided(gradient, out, self.note.totals, floor, width)

    def slopes(
        self, to_state: Tensor | None
    ) -> tuple[list[Tensor | None], Tensor | None, list[Tensor]]:
        """Return the gradients of q, k and v, of the state before, and of what is learned."""
        part, cut, state = self.part, self.cut, self.note.state
        if part.queries is None:
            found = running_sums.of_add(part, state, cut, to_state)
        elif part.keys is None:
            found = running_sums.of_ask(part, state, self.to_sums, to_state)
        else:
            found = running_sums.of_scan(part, state, cut, self.to_sums, to_state)
        outs = [x for x in part[:2] if x is not None]
        given = [x for x in found[:2] if x is not None]
        asked = [x for x in (*self.inputs, *self.learned) if x is not None]
        grads = iter(torch.autograd.grad(outs, asked, given, materialize_grads=True))
        parts = [None if x is None else next(grads) for x in self.inputs]
        to_v = None
        if found.values is not None:
            to_v = cut.times(found.values, part.factors.value)[..., : self.plan.value_dim]
            to_v = cut.together(to_v)
        return [*parts, to_v], found.state, list(grads)


NUMBERS = 1 << 18  # features of a stretch: 1 MiB; judged by benchmarks/mechanisms.py --case linear
CHUNKS = 32  # of a stretch at most


def attend(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, parts: Parts
) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    causal = isinstance(call.pattern, Causal)
    with torch.autocast(q.device.type, enabled=False):  # it would round sums to half
        if masks.k_segments is not None and not causal:
            return _documents(q, k, v, masks, call, parts.features)
        early = max(call.queries - call.keys, 0) if causal else 0  # before the first key
        data = Data(masks.valid, masks.k_segments)
        out = _run(q[:, :, early:], k, v, data, call, parts.features, causal=causal)
        return F.pad(out, (0, 0, early, 0)) if early else out


def stream(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    call: AttentionCall,
    features: FeatureMap,
    before: running_sums.State | None,
) -> tuple[Tensor, running_sums.State | None]:
    """Return the outputs of new positions that see themselves and all before, and the state after.

    Args:
        q: [B, H, T, D].
        k: [B, G, T, D].
        v: [B, G, T, E].
        valid: bool [B, T], False = padding, which leaves the state as it is; None = all are real.
        call: of the layer.
        features: phi.
        before: the state before them; None = nothing was read.
    """
    with torch.autocast(q.device.type, enabled=False):
        length = q.shape[2]
        compiling = torch.compiler.is_compiling()
        if length > 1 and compiling:
            q, k, v, valid = _whole(q, k, v, valid)
            positions = q.shape[2]
        else:
            _, positions = _cached(q, k, call.kernel.num_features(call.head_dim))
        steps = _steps(q.shape[2], q.shape[2], positions, causal=True)
        plan = Plan(q.shape[0], steps, Data(valid, None), v.shape[3], features)
        state, outs = before, []
        for step in steps:
            stretch = plan.stretch(step, slice(None), q, k, v)
            cut = plan.cut(step, stretch, k.shape[1])
            found, state = plan.run(step._replace(last=False), stretch, state, cut)
            outs.append(cut.together(found[0]))
        if length > 1 or compiling:  # else it may be a part of the states of all chunks
            state = state.alone()
        return torch.cat(outs, dim=2)[:, :, :length].to(q.dtype), state


def _whole(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the same with padding up to a whole chunk, so that one graph serves all lengths."""
    if valid is None:
        valid = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    more = -q.shape[2] % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
    return q, k, v, F.pad(valid, (0, more))


def refuses(call: AttentionCall) -> list[str]:
    """Refuse kernels that weigh pairs, what restricts single pairs, and empty input."""
    if call.kernel.weighs_pairs:
        return [f"{type(call.kernel).__name__} weighs pairs: there are no features to sum"]
    reasons = []
    if not isinstance(call.pattern, (Full, Causal)):
        reasons.append(f"sums over keys know Full and Causal, not {call.pattern!r}")
    if call.pairwise:
        reasons.append("mask= and the segments of two sequences name pairs one by one")
    if call.dropping:
        reasons.append("there are no weights to drop")
    if call.queries * call.keys == 0:
        reasons.append("there is no query or no key")
    return reasons


def _documents(
    q: Tensor, k: Tensor, v: Tensor, masks: MaskInputs, call: AttentionCall, features: FeatureMap
) -> Tensor:
    """Let every query see the keys of its document: in a causal sum of keys, then queries."""
    length = q.shape[2]
    order = masks.k_segments.repeat(1, 2).argsort(dim=1, stable=True)  # keys before queries
    keys, tokens = order < length, order % length
    seen = keys if masks.valid is None else keys & masks.valid.gather(1, tokens)
    laid = (x.take_along_dim(tokens[:, None, :, None], dim=2) for x in (q, k, v))
    data = Data(seen, masks.k_segments.gather(1, tokens))
    out = _run(*laid, data, call, features, causal=True)
    places = order.argsort(dim=1)[:, length:]
    return out.take_along_dim(places[:, None, :, None], dim=2)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    data: Data,
    call: AttentionCall,
    features: FeatureMap,
    *,
    causal: bool,
) -> Tensor:
    learned = [p for p in features.parameters() if p.requires_grad]
    inputs = (q, k, v, *learned)
    if is_transformed():
        return _composed(q, k, v, data, features, causal=causal)
    rows, positions = _cached(q, k, call.kernel.num_features(call.head_dim))
    steps = _steps(q.shape[2], k.shape[2], positions, causal)
    plan = Plan(rows, steps, data, v.shape[3], features)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return Replay.apply(plan, *inputs)
    return forward(plan, q, k, v).to(q.dtype)


def _composed(
    q: Tensor, k: Tensor, v: Tensor, data: Data, features: FeatureMap, *, causal: bool
) -> Tensor:
    """Return the same as one stretch, in operations that do not depend on the length.

    Whole chunks: positions behind the last one are read by none before it.
    """
    queries = q.shape[2]
    if causal:
        more = -queries % CHUNK
        q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
        data = Data(*(None if x is None else F.pad(x, (0, more)) for x in data))
    steps = _steps(q.shape[2], k.shape[2], max(q.shape[2], k.shape[2]), causal)
    return compose(Plan(q.shape[0], steps, data, v.shape[3], features), q, k, v)[:, :, :queries]


def _cached(q: Tensor, k: Tensor, features: int) -> tuple[int, int]:
    """Return how many rows of a batch and how many positions are computed together."""
    batch, heads, queries, _ = q.shape
    numbers = heads * features
    rows = NUMBERS // (numbers * min(max(queries, k.shape[2]), CHUNK))
    rows = min(max(rows, 1), batch)
    chunks = NUMBERS // (rows * numbers * CHUNK)
    return rows, min(max(chunks, 1), CHUNKS) * CHUNK


def _steps(queries: int, keys: int, positions: int, causal: bool) -> tuple[Step, ...]:
    """Return the stretches of a sequence, of so many positions at most."""
    if not causal:
        return (
            *(Step(None, span) for span in _spans(0, keys, positions)),
            *(Step(span, None) for span in _spans(0, queries, positions)),
        )
    early = keys - queries
    whole = queries - queries % CHUNK
    steps = [Step(None, span) for span in _spans(0, early, positions)]
    for a, b in _spans(0, whole, positions):
        steps.append(Step((a, b), (early + a, early + b), CHUNK, last=b == queries))
    if whole < queries:
        steps.append(Step((whole, queries), (early + whole, keys), queries - whole, last=True))
    return tuple(steps)


def _spans(start: int, stop: int, positions: int) -> list[tuple[int, int]]:
    if stop - start <= positions:  # one span, whose ends may be symbols
        return [(start, stop)] if stop > start else []
    return [(a, min(a + positions, stop)) for a in range(start, stop, positions)]


SCAN = Op(
    "scan", "sums of features along the sequence, in time that grows with it", attend, refuses
)
