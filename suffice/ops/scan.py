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

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.kernels.chunks import CHUNK
from suffice.ops import running
from suffice.ops.looked import looked_into
from suffice.ops.op import Op, Parts
from suffice.ops.problem import Problem
from suffice.ops.replay import Data, Plan, Replay, Step, compose, forward
from suffice.ops.where import Where
from suffice.patterns import Causal, Full

NUMBERS = 1 << 18  # features of a stretch: 1 MiB; judged by benchmarks/mechanisms.py --case linear
CHUNKS = 32  # of a stretch at most


def attend(q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, parts: Parts) -> Tensor:
    """Return the outputs [B, H, T, E] in the dtype of q."""
    causal = isinstance(problem.pattern, Causal)
    with torch.autocast(q.device.type, enabled=False):  # it would round sums to half
        if where.k_segments is not None and not causal:
            return _documents(q, k, v, where, problem, parts.features)
        early = max(problem.queries - problem.keys, 0) if causal else 0  # before the first key
        data = Data(where.valid, where.k_segments)
        out = _run(q[:, :, early:], k, v, data, problem, parts.features, causal=causal)
        return F.pad(out, (0, 0, early, 0)) if early else out


def stream(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    problem: Problem,
    features: FeatureMap,
    before: running.State | None,
) -> tuple[Tensor, running.State | None]:
    """Return the outputs of new positions that see themselves and all before, and the state after.

    Args:
        q: [B, H, T, D].
        k: [B, G, T, D].
        v: [B, G, T, E].
        valid: bool [B, T], False = padding, which leaves the state as it is; None = all are real.
        problem: of the layer.
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
            _, positions = _cached(q, k, problem.kernel.num_features(problem.head_dim))
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


def refuses(problem: Problem) -> list[str]:
    """Refuse kernels that weigh pairs, what restricts single pairs, and empty input."""
    if problem.kernel.weighs_pairs:
        return [f"{type(problem.kernel).__name__} weighs pairs: there are no features to sum"]
    reasons = []
    if not isinstance(problem.pattern, (Full, Causal)):
        reasons.append(f"sums over keys know Full and Causal, not {problem.pattern!r}")
    if problem.pairwise:
        reasons.append("mask= and the segments of two sequences name pairs one by one")
    if problem.dropping:
        reasons.append("there are no weights to drop")
    if problem.queries * problem.keys == 0:
        reasons.append("there is no query or no key")
    return reasons


def _documents(
    q: Tensor, k: Tensor, v: Tensor, where: Where, problem: Problem, features: FeatureMap
) -> Tensor:
    """Let every query see the keys of its document: in a causal sum of keys, then queries."""
    length = q.shape[2]
    order = where.k_segments.repeat(1, 2).argsort(dim=1, stable=True)  # keys before queries
    keys, tokens = order < length, order % length
    seen = keys if where.valid is None else keys & where.valid.gather(1, tokens)
    laid = (x.take_along_dim(tokens[:, None, :, None], dim=2) for x in (q, k, v))
    data = Data(seen, where.k_segments.gather(1, tokens))
    out = _run(*laid, data, problem, features, causal=True)
    places = order.argsort(dim=1)[:, length:]
    return out.take_along_dim(places[:, None, :, None], dim=2)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    data: Data,
    problem: Problem,
    features: FeatureMap,
    *,
    causal: bool,
) -> Tensor:
    learned = [p for p in features.parameters() if p.requires_grad]
    inputs = (q, k, v, *learned)
    if looked_into(*inputs):
        return _composed(q, k, v, data, features, causal=causal)
    rows, positions = _cached(q, k, problem.kernel.num_features(problem.head_dim))
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
