"""Running sums of features: a sequence in pieces, the state passed from one to the next.

State of a key/value head after some keys: sum over them of phi(k_s) [v_s, 1]^T, [F, columns]. A
query reads phi(q) . state: its weighted values, then the sum of its weights. A piece is
cut into chunks: a query sums the pairs of its own chunk and reads the state before it. Scales of
keys are logarithms relative to a stabilizer, the largest one of a document so far.

Letters: B batch, H query heads, G key/value heads, L = N C positions of a piece, N chunks of C,
M = N B G products of a batch, F features, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.kernels.base import columns
from suffice.ops.op import is_transformed

STEP = 16.0  # of the range of floats, e^16 is given away
LIMIT = 1 << 36  # steps
SPAN = 1 << 38  # steps; separates the documents of a row, whose numbers rise


class SumInputs(NamedTuple):
    """A piece of a sequence: only keys, only queries, or both at the same positions."""

    q: Tensor | None  # [B, H, L, D]
    k: Tensor | None  # [B, G, L, D]
    v: Tensor | None  # [B, G, L, E]
    valid: Tensor | None = None  # bool [B, L], False = a masked key
    documents: Tensor | None = None  # int [B, L], which rise along a row; None: one


class Stabilizers(NamedTuple):
    """The exponents [N, B, G or 1, C] that sums are relative to, and their documents."""

    steps: Tensor | None  # None: keys have no scales
    documents: Tensor | None  # None: there is one

    def at(self, *index: slice | int | None) -> Stabilizers:
        return Stabilizers(*(None if part is None else part[index] for part in self))

    def followed_by(self, later: Stabilizers) -> Stabilizers:
        """Return the stabilizers of these chunks and later ones."""
        pairs = zip(self, later, strict=True)
        return Stabilizers(*(None if a is None else torch.cat([a, b]) for a, b in pairs))

    def factor(self, later: Stabilizers) -> Tensor | None:
        """Return the factor of sums relative to these at later ones; None: 1 for all."""
        factor = None
        if self.steps is not None:
            factor = (self.steps - later.steps).clamp_(max=0.0).mul_(STEP).exp_()
        if self.documents is None:
            return factor
        apart = self.documents != later.documents
        return (~apart).float() if factor is None else factor.masked_fill_(apart, 0.0)

    def factor_in_later_chunks(self) -> Tensor | None:
        """Return the factor of each chunk's sum (column) in the state after each chunk (row).

        These are the stabilizers of the ends of chunks [N, B, G or 1, 1]: [N, N, B, G or 1].
        """
        factor = self.at(None).factor(self.at(slice(None), None))
        if factor is None:
            return None
        return factor[..., 0].permute(2, 3, 0, 1).tril().permute(2, 3, 0, 1)


class State(NamedTuple):
    """Sums [B, G, F, columns] over the keys so far of the last position's document."""

    sums: Tensor
    stabilizer: Stabilizers  # that of the last position

    def copied(self) -> State:
        sums, *parts = (
            None if x is None else x.clone(memory_format=torch.contiguous_format)
            for x in (self.sums, *self.stabilizer)
        )
        return State(sums, Stabilizers(*parts))


class Chunks(NamedTuple):
    """A piece of B rows and G key/value heads, cut into N chunks of C positions."""

    batch: int
    groups: int
    number: int
    length: int

    @property
    def products(self) -> int:
        """B G, the products of one chunk."""
        return self.batch * self.groups

    def split(self, x: Tensor) -> Tensor:
        """Return [B, heads, L, D] as [M, rows, D]; the query heads of a group are rows."""
        exact = torch.promote_types(x.dtype, torch.float32)
        x = x.to(exact).unflatten(2, (self.number, self.length)).unflatten(1, (self.groups, -1))
        return x.permute(3, 0, 1, 2, 4, 5).reshape(self.number * self.products, -1, x.shape[-1])

    def join(self, x: Tensor) -> Tensor:
        """Return [M, rows, E] as [B, heads, L, E]."""
        x = x.unflatten(1, (-1, self.length)).unflatten(0, (self.number, self.batch, self.groups))
        return x.permute(1, 2, 3, 0, 4, 5).flatten(1, 2).flatten(2, 3)

    def split_positions(self, x: Tensor | None) -> Tensor | None:
        """Return [B, L] as [N, B, 1, C]."""
        if x is None:
            return None
        return x.unflatten(1, (self.number, self.length)).transpose(0, 1)[:, :, None]

    def scaled(self, x: Tensor, factor: Tensor | None) -> Tensor:
        """Return x [M, rows, W] times factors [N, B, G or 1, C] of its positions; None: 1."""
        if factor is None:
            return x
        each = self._per_product(factor)
        if x.shape[1] != self.length:
            each = each.repeat(1, x.shape[1] // self.length)
        return x * each[..., None].to(x.dtype)

    def causal(self, pairs: Tensor, factor: Tensor | None) -> Tensor:
        """Return pairs [M, rows, C] times factors, later keys left out; may write in place."""
        if factor is None and pairs.shape[1] == self.length:
            return pairs.tril_()
        square = pairs.unflatten(1, (-1, self.length))
        if factor is not None:
            square = square * self._per_product(factor)[:, None].to(pairs.dtype)
        return square.tril().flatten(1, 2)

    def _per_product(self, factor: Tensor) -> Tensor:
        return factor.expand(-1, -1, self.groups, *factor.shape[3:]).flatten(0, 2)


class Factors(NamedTuple):
    """Factors of the sums of some chunks, none above 1; None: all are 1."""

    key: Tensor | None = None  # [N, B, G or 1, C], of a key within its chunk
    key_to_state: Tensor | None = None  # [N, B, G or 1, C], of a key in the state
    decay: Tensor | None = None  # [N, B, G or 1, 1], of the state before, as a chunk is added
    state_to_query: Tensor | None = None  # [N, B, G or 1, C], of the state before, for a query
    pairs: Tensor | None = None  # [N, B, G or 1, C, C], of a query (row) and an earlier key


class Features(NamedTuple):
    queries: Tensor | None  # [M, rows, F]
    keys: Tensor | None  # [M, C, F]
    values: Tensor | None  # [M, C, columns], padded with ones, times the factors of the keys
    factors: Factors
    ends: Stabilizers  # of the last position of each chunk


def featurize(
    inputs: SumInputs, before: State | None, feature_map: FeatureMap, chunks: Chunks
) -> Features:
    queries = None if inputs.q is None else feature_map.queries(chunks.split(inputs.q))
    if inputs.k is None:
        return Features(queries, None, None, Factors(), Stabilizers(None, None))
    keys, logs = feature_map.keys(chunks.split(inputs.k))
    if logs is not None:
        logs = logs.unflatten(0, (chunks.number, chunks.batch, chunks.groups))
    valid, documents = map(chunks.split_positions, (inputs.valid, inputs.documents))
    stabilizer = None if before is None else before.stabilizer
    factors, ends = _factors(logs, valid, documents, stabilizer, pairs=queries is not None)
    v = chunks.split(inputs.v)
    values = F.pad(v, (0, columns(v.shape[2]) - v.shape[2]), value=1.0)
    return Features(queries, keys, chunks.scaled(values, factors.key), factors, ends)


@torch.no_grad()
def _factors(
    logs: Tensor | None,
    valid: Tensor | None,
    documents: Tensor | None,
    before: Stabilizers | None,
    *,
    pairs: bool,
) -> tuple[Factors, Stabilizers]:
    """Return the factors of some chunks and the stabilizers of their ends, [N, B, G or 1, 1].

    logs are [N, B, G, C], valid [N, B, 1, C], documents int [N, B, 1, C] that rise along a row,
    before [1, B, G or 1, 1]; `pairs`: whether pairs within a chunk need factors.
    """
    stabilizers = Stabilizers(_steps(logs, valid, documents, before), documents)
    key = None
    if logs is not None:
        key = (logs - STEP * stabilizers.steps).exp_()
        if valid is not None:
            key.masked_fill_(~valid, 0.0)
    elif valid is not None:
        key = valid.float()
    ends = stabilizers.at(..., slice(-1, None))
    start = before or stabilizers.at(slice(0, 1), ..., slice(0, 1))
    if documents is None and _is_constant(stabilizers.steps, start.steps):
        return Factors(key=key), ends
    prior = start.followed_by(ends.at(slice(0, -1)))
    within = None
    if pairs:
        within = stabilizers.at(..., None, slice(None)).factor(
            stabilizers.at(..., slice(None), None)
        )
    factors = stabilizers.factor(ends), prior.factor(ends), prior.factor(stabilizers)
    return Factors(key, *factors, within), ends


def _steps(
    logs: Tensor | None, valid: Tensor | None, documents: Tensor | None, before: Stabilizers | None
) -> Tensor | None:
    """Return the stabilizer of each position: the largest of its document so far."""
    if logs is None:
        return None
    steps = (logs / STEP).ceil().clamp(1 - LIMIT, LIMIT).to(torch.int64)
    if valid is not None:
        steps = steps.masked_fill(~valid, -LIMIT)
    base = 0 if documents is None else SPAN * documents
    row = (steps + base).permute(1, 2, 0, 3).flatten(2)  # [B, G, L]
    if before is not None:
        earlier = before.steps.to(torch.int64)
        if before.documents is not None:
            earlier = earlier + SPAN * before.documents
        row = row.maximum(earlier[0])
    top = row.cummax(dim=-1).values.unflatten(2, (logs.shape[0], logs.shape[3]))
    return (top.permute(2, 0, 1, 3) - base).to(logs.dtype)


def _is_constant(steps: Tensor | None, start: Tensor | None) -> bool:
    return steps is None or (not is_transformed() and bool((steps == start).all()))


def add(part: Features, before: State | None, chunks: Chunks) -> State:
    """Return the state after the keys of a piece that is one chunk."""
    return State(_states(part, before, chunks, 1)[-1], part.ends)


def query(part: Features, state: State) -> Tensor:
    """Return the sums [M, rows, columns] of queries that see the keys of a state and no others."""
    return torch.bmm(part.queries, state.sums.flatten(0, 1))


def scan(
    part: Features, before: State | None, chunks: Chunks, *, last: bool
) -> tuple[Tensor, State | None]:
    """Return the sums [M, rows, columns] of keys up to each query, and the state unless `last`."""
    pairs = torch.bmm(part.queries, part.keys.transpose(1, 2))
    sums = torch.bmm(chunks.causal(pairs, part.factors.pairs), part.values)
    after = _states(part, before, chunks, chunks.number - last)
    first = _stateless(before, chunks)
    if first < len(sums):
        states = after[: chunks.number - (before is None)].flatten(0, 2)
        factor = part.factors.state_to_query
        if factor is None:
            sums[first:].baddbmm_(part.queries[first:], states)
        else:
            read = torch.bmm(part.queries[first:], states)
            sums[first:].add_(chunks.scaled(read, factor[-len(read) // chunks.products :]))
    return sums, None if last else State(after[-1], part.ends.at(slice(-1, None)))


def _stateless(before: State | None, chunks: Chunks) -> int:
    return chunks.products if before is None else 0


def _states(part: Features, before: State | None, chunks: Chunks, count: int) -> Tensor:
    """Return the states [n, B, G, F, columns]: the one before, then after each of `count` chunks.

    Chunk after chunk: a product with zeros would let an overflow of later keys into earlier rows.
    """
    products = count * chunks.products
    keys = part.keys[:products].transpose(1, 2)
    values = chunks.scaled(part.values, part.factors.key_to_state)[:products]
    if torch.is_grad_enabled() or is_transformed():
        added = torch.bmm(keys, values).unflatten(0, (count, chunks.batch, chunks.groups))
        return _states_at_once(added, part.ends, before)
    first = 0 if before is None else 1
    shape = (first + count, chunks.batch, chunks.groups, keys.shape[1], values.shape[2])
    states = values.new_empty(shape)
    torch.bmm(keys, values, out=states[first:].flatten(0, 2))
    if before is not None:
        states[0] = before.sums
    decay = part.factors.decay
    for n in range(1, len(states)):
        if decay is None:
            states[n] += states[n - 1]
        else:
            states[n].addcmul_(states[n - 1], decay[n - first, ..., None].to(states.dtype))
    return states


def _states_at_once(added: Tensor, ends: Stabilizers, before: State | None) -> Tensor:
    """Return the same states by one product, whose graph does not depend on their number."""
    ends = ends.at(slice(0, len(added)))
    if before is not None:
        added = torch.cat([before.sums[None], added])
        ends = before.stabilizer.followed_by(ends)
    decay = ends.factor_in_later_chunks()
    if decay is None:
        return added.cumsum(0)
    decay = decay.expand(-1, -1, -1, added.shape[2]).to(added.dtype)
    return torch.einsum("tnbg,nbgfc->tbgfc", decay, added)


class Gradients(NamedTuple):
    """Gradients of the features of a piece, and of the sums before it."""

    queries: Tensor | None  # [M, rows, F]
    keys: Tensor | None  # [M, C, F]
    values: Tensor | None  # [M, C, columns], of the values times their factors
    state: Tensor | None  # [B, G, F, columns]


def add_backward(
    part: Features, before: State | None, chunks: Chunks, of_state: Tensor
) -> Gradients:
    """Return the gradients of `add`, given that of the state after it."""
    zeros = Gradients(None, torch.zeros_like(part.keys), torch.zeros_like(part.values), None)
    return _through_states(zeros, part, before, chunks, [], of_state)


def query_backward(
    part: Features, state: State, of_sums: Tensor, of_state: Tensor | None
) -> Gradients:
    """Return the gradients of `query`, given those of its sums and of later uses of the state."""
    read = torch.bmm(part.queries.transpose(1, 2), of_sums).view_as(state.sums)
    queries = torch.bmm(of_sums, state.sums.flatten(0, 1).transpose(1, 2))
    return Gradients(queries, None, None, read if of_state is None else read.add_(of_state))


def scan_backward(
    part: Features, before: State | None, chunks: Chunks, of_sums: Tensor, of_state: Tensor | None
) -> Gradients:
    """Return the gradients of `scan`, given those of its sums and of the state after it."""
    factor = part.factors.pairs
    pairs = chunks.causal(torch.bmm(part.queries, part.keys.transpose(1, 2)), factor)
    values = torch.bmm(pairs.transpose(1, 2), of_sums)
    of_pairs = chunks.causal(torch.bmm(of_sums, part.values.transpose(1, 2)), factor)
    queries = torch.bmm(of_pairs, part.keys)
    keys = torch.bmm(of_pairs.transpose(1, 2), part.queries)
    of_read: Sequence[Tensor] = []
    first = _stateless(before, chunks)
    if first < len(of_sums):
        reading = chunks.scaled(of_sums, part.factors.state_to_query)[first:]
        states = _states(part, before, chunks, chunks.number - 1).flatten(0, 2)
        queries[first:].baddbmm_(reading, states.transpose(1, 2))
        of_states = torch.bmm(part.queries[first:].transpose(1, 2), reading)
        of_read = of_states.unflatten(0, (-1, chunks.batch, chunks.groups)).unbind(0)
    grads = Gradients(queries, keys, values, None)
    return _through_states(grads, part, before, chunks, of_read, of_state)


def _through_states(
    grads: Gradients,
    part: Features,
    before: State | None,
    chunks: Chunks,
    of_read: Sequence[Tensor],
    of_state: Tensor | None,
) -> Gradients:
    """Add in place the gradients that each chunk's keys and values get through later states.

    `of_read` are those of the states that the last chunks read, `of_state` of the final one.
    """
    of_added = []  # gradient of each chunk's own sums, the last one first
    decay = part.factors.decay
    for n in reversed(range(chunks.number)):
        if of_state is not None:
            of_added.append(of_state)
            if decay is not None:
                of_state = of_state * decay[n, ..., None].to(of_state.dtype)
        place = n - chunks.number + len(of_read)
        if place >= 0:
            of_state = of_read[place] if of_state is None else of_state + of_read[place]
    if of_added:
        together = torch.stack(of_added[::-1]).flatten(0, 2)
        products, factor = len(together), part.factors.key_to_state
        values = chunks.scaled(part.values, factor)[:products]
        grads.keys[:products].baddbmm_(values, together.transpose(1, 2))
        more = torch.bmm(part.keys[:products], together)
        each = None if factor is None else factor[: len(of_added)]
        grads.values[:products] += chunks.scaled(more, each)
    return grads._replace(state=None if before is None else of_state)
