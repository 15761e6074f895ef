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
from suffice.ops import running
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

    def run(
        self, step: Step, stretch: Stretch, state: State | None
    ) -> tuple[Tensor | None, State | None]:
        """Return the sums of a step's queries and the state after it."""
        if stretch.q is None:
            return None, running.add(stretch, state, self.features)
        if stretch.k is None:
            return running.ask(stretch.q, state, self.features), state
        return running.scan(stretch, state, self.features, chunk=step.chunk, last=step.last)

    def cut(self, step: Step, stretch: Stretch, groups: int) -> Cut:
        """Return how the queries of a step are cut."""
        batch, _, length, _ = stretch.q.shape
        chunk = step.chunk or length
        return Cut(batch, groups, length // chunk, chunk)

    def outputs(self, step: Step, stretch: Stretch, groups: int, sums: Tensor) -> Tensor:
        """Return the outputs [B, H, L, E] of the sums of a step."""
        out = divided(sums, self.features.floor, self.value_dim)
        return self.cut(step, stretch, groups).together(out)


def compose(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the outputs [B, H, T, E], as operations torch can look into."""
    outs = []
    for rows in plan.batches(q.shape[0]):
        state, parts = None, []
        for step in plan.steps:
            stretch = plan.stretch(step, rows, q, k, v)
            sums, state = plan.run(step, stretch, state)
            if sums is not None:
                parts.append(plan.outputs(step, stretch, k.shape[1], sums))
        outs.append(torch.cat(parts, dim=2) if len(parts) > 1 else parts[0])
    return (torch.cat(outs) if len(outs) > 1 else outs[0]).to(q.dtype)


@torch.no_grad()
def forward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, states: list[State | None] | None = None
) -> Tensor:
    """Return the outputs [B, H, T, E]; note the state before each step in `states`."""
    batch, heads, queries, _ = q.shape
    result = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    for rows in plan.batches(batch):
        state = None
        for step in plan.steps:
            if states is not None:
                states.append(state)
            stretch = plan.stretch(step, rows, q, k, v)
            sums, state = plan.run(step, stretch, state)
            if sums is not None:
                out = plan.outputs(step, stretch, k.shape[1], sums)
                result[rows, :, slice(*step.queries)] = out
    return result


class Replay(torch.autograd.Function):
    """`forward` with a gradient."""

    @staticmethod
    def forward(ctx, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor):  # noqa: ANN001, ANN205
        """Compute, and keep the states."""
        ctx.plan, ctx.states = plan, []
        ctx.save_for_backward(q, k, v, *learned)
        return forward(plan, q, k, v, ctx.states)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # noqa: ANN001, ANN205
        """Compute each step again, the last one first."""
        q, k, v, *learned = ctx.saved_tensors
        plan, states = ctx.plan, list(ctx.states)
        slopes = [torch.empty_like(x) for x in (q, k, v)]
        totals = [torch.zeros_like(x) for x in learned]
        for rows in reversed(plan.batches(q.shape[0])):
            to_state = None
            for step in reversed(plan.steps):
                again = _Again(plan, step, plan.stretch(step, rows, q, k, v), states.pop(), learned)
                to_sums = None
                if step.queries is not None:
                    ours = gradient[rows, :, slice(*step.queries)]
                    cut = plan.cut(step, again.stretch, k.shape[1])
                    to_sums = slope_of_divided(
                        again.sums.detach(), plan.features.floor, cut.apart(ours)
                    )
                parts, to_state, more = again.back(to_sums, to_state)
                for slope, span, part in zip(slopes, step.spans, parts, strict=True):
                    if span is not None:
                        slope[rows, :, slice(*span)] = part
                for total, part in zip(totals, more, strict=True):
                    total += part
        return None, *slopes, *totals


class _Again:
    """A step computed once more, so that it can be differentiated."""

    def __init__(
        self,
        plan: Plan,
        step: Step,
        stretch: Stretch,
        state: State | None,
        learned: list[Tensor],
    ) -> None:
        self.inputs = [_leaf(x) for x in stretch[:3]]
        self.stretch = stretch
        self.before = None if state is None else _leaf(state.sums)
        self.learned = learned
        if state is not None:
            state = State(self.before, state.mark)
        with torch.enable_grad():
            self.sums, after = plan.run(step, Stretch(*self.inputs, *stretch[3:]), state)
        self.after = None if after is None else after.sums

    def back(
        self, gradient: Tensor | None, to_after: Tensor | None
    ) -> tuple[list[Tensor | None], Tensor | None, list[Tensor]]:
        """Return the gradients of q, k and v, of the state before, and of what is learned."""
        pairs = [(self.sums, gradient), (self.after, to_after)]
        pairs = [(out, slope) for out, slope in pairs if slope is not None]
        sources = [*self.inputs, self.before, *self.learned]
        asked = [x for x in sources if x is not None]
        outs, slopes = [out for out, _ in pairs], [slope.to(out.dtype) for out, slope in pairs]
        found = iter(torch.autograd.grad(outs, asked, slopes, materialize_grads=True))
        parts = [None if x is None else next(found) for x in sources]
        return parts[:3], parts[3], parts[4:]


def _leaf(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().requires_grad_()
