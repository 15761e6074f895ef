"""A scan step by step, and its gradient step by step: what a step makes is not kept.

Forward keeps the inputs and the state between steps; backward computes a step again, with its
gradient, the last one first. So the features, pairs and states of a long sequence are never all
alive, and those of one step lie in the cache.

Letters: B batch, H query heads, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from suffice.kernels import FeatureMap
from suffice.kernels.chunks import columns
from suffice.ops import running, slopes
from suffice.ops.features import divided, slope_of_divided
from suffice.ops.running import Cut, State, Stretch

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
        part = running.read(stretch, state, self.features, cut)
        if stretch.q is None:
            return None, running.add(part, state, cut)
        if stretch.k is None:
            sums = running.ask(part, state)
        else:
            sums, state = running.scan(part, state, cut, last=step.last)
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
            self.part = running.read(again, note.state, plan.features, self.cut)

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
            found = slopes.of_add(part, state, cut, to_state)
        elif part.keys is None:
            found = slopes.of_ask(part, state, self.to_sums, to_state)
        else:
            found = slopes.of_scan(part, state, cut, self.to_sums, to_state)
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
