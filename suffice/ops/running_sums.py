"""Running sums of features: one stretch of a sequence at a time, the state handed on.

State of a key/value head after some keys: sum over them of phi(k_s) [v_s, 1]^T, [F, columns]. A
query asks it for phi(q) . state: its weighted values, and beside them the sum of its weights. A
stretch is cut into chunks: a query sums the pairs of its own chunk and asks the state before it.

Letters: B batch, H query heads, G key/value heads, L = N C positions of a stretch, N chunks of C,
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
SPAN = 1 << 38  # steps; parts the documents of a row, whose numbers rise


class Keys(NamedTuple):
    """What is known of the keys of some chunks; None = nothing scales, hides or parts them.

    Args:
        logs: [N, B, G, C], logarithms of their scales.
        seen: bool [N, B, 1, C], False = hidden from every query.
        runs: int [N, B, 1, C], documents, which rise along a row.
    """

    logs: Tensor | None
    seen: Tensor | None
    runs: Tensor | None


class Marks(NamedTuple):
    """Where positions stand: [N, B, G or 1, C], or some of them.

    Args:
        steps: references, in steps; None = there are no logarithms.
        runs: documents; None = there is one.
    """

    steps: Tensor | None
    runs: Tensor | None

    def of(self, *index: slice | int | None) -> Marks:
        """Return both indexed."""
        return Marks(*(None if part is None else part[index] for part in self))

    def before(self, later: Marks) -> Marks:
        """Return these chunks and later ones behind each other."""
        pairs = zip(self, later, strict=True)
        return Marks(*(None if a is None else torch.cat([a, b]) for a, b in pairs))

    def factor(self, later: Marks) -> Tensor | None:
        """Return what a sum that stands here is worth at later marks; None = there is one mark."""
        worth = None
        if self.steps is not None:
            worth = (self.steps - later.steps).clamp_(max=0.0).mul_(STEP).exp_()
        if self.runs is None:
            return worth
        apart = self.runs != later.runs
        return (~apart).float() if worth is None else worth.masked_fill_(apart, 0.0)

    def passed_on(self) -> Tensor | None:
        """Return the factor of each chunk's own sum (column) in the state after each chunk (row).

        Of marks [N, B, G or 1, 1]: [N, N, B, G or 1].
        """
        worth = self.of(None).factor(self.of(slice(None), None))
        return (
            None if worth is None else worth[..., 0].permute(2, 3, 0, 1).tril().permute(2, 3, 0, 1)
        )


class Factors(NamedTuple):
    """Factors of the sums of some chunks, none above 1; None = all are 1.

    Args:
        value: [N, B, G or 1, C], of a key within its chunk.
        added: [N, B, G or 1, C], of a key as its chunk is added to the state, beside `value`.
        kept: [N, B, G or 1, 1], of the state before a chunk as the chunk is added.
        asked: [N, B, G or 1, C], of the state before a chunk as a query reads it.
        pairs: [N, B, G or 1, C, C], of a query (row) and an earlier key within a chunk.
    """

    value: Tensor | None = None
    added: Tensor | None = None
    kept: Tensor | None = None
    asked: Tensor | None = None
    pairs: Tensor | None = None


@torch.no_grad()
def factors(keys: Keys, before: Marks | None, *, pairs: bool) -> tuple[Factors, Marks]:
    """Return the factors of some chunks and the marks of their last positions, [N, B, G or 1, 1].

    Args:
        keys: what is known of their keys.
        before: the mark of the last position before them, [1, B, G or 1, 1]; None = they are first.
        pairs: whether pairs within a chunk are needed.
    """
    marks = Marks(_references(keys, before), keys.runs)
    value = _values(keys, marks.steps)
    ends = marks.of(..., slice(-1, None))
    start = before or marks.of(slice(0, 1), ..., slice(0, 1))
    if _level(marks, start):
        return Factors(value=value), ends
    prior = start.before(ends.of(slice(0, -1)))
    within = None
    if pairs:
        within = marks.of(..., None, slice(None)).factor(marks.of(..., slice(None), None))
    return Factors(value, marks.factor(ends), prior.factor(ends), prior.factor(marks), within), ends


def _references(keys: Keys, before: Marks | None) -> Tensor | None:
    """Return the reference of each position: the largest level its document has shown so far."""
    logs = keys.logs
    if logs is None:
        return None
    levels = (logs / STEP).ceil().clamp(1 - LIMIT, LIMIT).to(torch.int64)
    if keys.seen is not None:
        levels = levels.masked_fill(~keys.seen, -LIMIT)
    base = 0 if keys.runs is None else SPAN * keys.runs
    row = (levels + base).permute(1, 2, 0, 3).flatten(2)  # [B, G, L]
    if before is not None:
        earlier = before.steps.to(torch.int64)
        row = row.maximum((earlier if before.runs is None else earlier + SPAN * before.runs)[0])
    top = row.cummax(dim=-1).values.unflatten(2, (logs.shape[0], logs.shape[3]))
    return (top.permute(2, 0, 1, 3) - base).to(logs.dtype)


def _values(keys: Keys, steps: Tensor | None) -> Tensor | None:
    """Return what a key counts relative to its own reference, 0 if it is hidden."""
    if steps is None:
        return None if keys.seen is None else keys.seen.float()
    value = (keys.logs - STEP * steps).exp_()
    return value if keys.seen is None else value.masked_fill_(~keys.seen, 0.0)


def _level(marks: Marks, start: Marks) -> bool:
    """Return whether all factors between positions are known to be 1."""
    if marks.runs is not None:
        return False
    if marks.steps is None:
        return True
    return not is_transformed() and bool((marks.steps == start.steps).all())


class Stretch(NamedTuple):
    """Some positions of a sequence: only keys, only queries, or both at the same positions.

    Args:
        q: [B, H, L, D], None = no queries.
        k: [B, G, L, D], None = no keys.
        v: [B, G, L, E].
        seen: bool [B, L], False = a hidden key; None = all are seen.
        runs: int [B, L], documents, which rise along a row; None = one.
    """

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    seen: Tensor | None = None
    runs: Tensor | None = None


class State(NamedTuple):
    """The keys so far.

    Args:
        sums: [B, G, F, columns], over those of the document at `mark`, relative to its reference.
        mark: of the last position.
    """

    sums: Tensor
    mark: Marks

    def alone(self) -> State:
        """Return the same in memory of its own, laid out as any other's."""
        marks = (None if part is None else _copied(part) for part in self.mark)
        return State(_copied(self.sums), Marks(*marks))


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


class Cut(NamedTuple):
    """How a stretch is cut: B rows, G key/value heads, N chunks of C positions."""

    batch: int
    groups: int
    chunks: int
    chunk: int

    @property
    def blocks(self) -> int:
        """B G, the products of one chunk."""
        return self.batch * self.groups

    def apart(self, x: Tensor) -> Tensor:
        """Return [B, heads, L, D] as [M, rows, D]; the query heads of a group are rows."""
        exact = torch.promote_types(x.dtype, torch.float32)
        x = x.to(exact).unflatten(2, (self.chunks, self.chunk)).unflatten(1, (self.groups, -1))
        return x.permute(3, 0, 1, 2, 4, 5).reshape(self.chunks * self.blocks, -1, x.shape[-1])

    def together(self, x: Tensor) -> Tensor:
        """Return [M, rows, E] as [B, heads, L, E]."""
        x = x.unflatten(1, (-1, self.chunk)).unflatten(0, (self.chunks, self.batch, self.groups))
        return x.permute(1, 2, 3, 0, 4, 5).flatten(1, 2).flatten(2, 3)

    def along(self, x: Tensor | None) -> Tensor | None:
        """Return [B, L] as [N, B, 1, C]."""
        if x is None:
            return None
        return x.unflatten(1, (self.chunks, self.chunk)).transpose(0, 1)[:, :, None]

    def rows(self, factor: Tensor) -> Tensor:
        """Return factors [N, B, G or 1, ...] for each product: [M, ...]."""
        return factor.expand(-1, -1, self.groups, *factor.shape[3:]).flatten(0, 2)

    def times(self, x: Tensor, factor: Tensor | None) -> Tensor:
        """Return x [M, rows, W] times factors [N, B, G or 1, C] of its positions; None = 1."""
        if factor is None:
            return x
        each = self.rows(factor)
        if x.shape[1] != self.chunk:
            each = each.repeat(1, x.shape[1] // self.chunk)
        return x * each[..., None].to(x.dtype)

    def visible(self, pairs: Tensor, factor: Tensor | None) -> Tensor:
        """Return pairs [M, rows, C] times factors, later keys left out; may write in place."""
        if factor is None and pairs.shape[1] == self.chunk:
            return pairs.tril_()
        square = pairs.unflatten(1, (-1, self.chunk))
        if factor is not None:
            square = square * self.rows(factor)[:, None].to(pairs.dtype)
        return square.tril().flatten(1, 2)


class Read(NamedTuple):
    """A stretch with its features.

    Args:
        queries: [M, rows, F] or None.
        keys: [M, C, F] or None.
        values: [M, C, columns], values with ones beside them, times the factors of the keys.
        factors: of the sums.
        ends: the mark of each chunk's last position.
    """

    queries: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    factors: Factors
    ends: Marks


def read(stretch: Stretch, before: State | None, features: FeatureMap, cut: Cut) -> Read:
    """Read a stretch: the only place where features are made."""
    queries = None if stretch.q is None else features.queries(cut.apart(stretch.q))
    if stretch.k is None:
        return Read(queries, None, None, Factors(), Marks(None, None))
    keys, logs = features.keys(cut.apart(stretch.k))
    if logs is not None:
        logs = logs.unflatten(0, (cut.chunks, cut.batch, cut.groups))
    known = Keys(logs, cut.along(stretch.seen), cut.along(stretch.runs))
    scale, ends = factors(known, before and before.mark, pairs=queries is not None)
    v = cut.apart(stretch.v)
    values = F.pad(v, (0, columns(v.shape[2]) - v.shape[2]), value=1.0)
    return Read(queries, keys, cut.times(values, scale.value), scale, ends)


def add(part: Read, before: State | None, cut: Cut) -> State:
    """Return the state after the keys of a stretch that is one chunk."""
    return State(states(part, before, cut, 1)[-1], part.ends)


def ask(part: Read, state: State) -> Tensor:
    """Return the sums [M, rows, columns] of queries that see the keys of a state and no others."""
    return torch.bmm(part.queries, state.sums.flatten(0, 1))


def scan(part: Read, before: State | None, cut: Cut, *, last: bool) -> tuple[Tensor, State | None]:
    """Return the sums [M, rows, columns] of queries that see keys up to their own, and the state.

    Args:
        part: the stretch.
        before: the state before it; None = there are no keys before.
        cut: its chunks.
        last: True if no stretch follows, so that no state is needed after this one.
    """
    pairs = torch.bmm(part.queries, part.keys.transpose(1, 2))
    sums = torch.bmm(cut.visible(pairs, part.factors.pairs), part.values)
    after = states(part, before, cut, cut.chunks - last)
    first = unasked(before, cut)
    if first < len(sums):
        asked = after[: cut.chunks - (before is None)].flatten(0, 2)
        ask_chunks(sums[first:], part.queries[first:], asked, part.factors.asked, cut)
    return sums, None if last else State(after[-1], part.ends.of(slice(-1, None)))


def unasked(before: State | None, cut: Cut) -> int:
    """Return how many products ask no state: those of a chunk without keys before it."""
    return cut.blocks if before is None else 0


def ask_chunks(
    sums: Tensor, queries: Tensor, asked: Tensor, factor: Tensor | None, cut: Cut
) -> None:
    """Add to the sums of some last chunks what each gets from the state before it, in place."""
    if factor is None:
        sums.baddbmm_(queries, asked)
    else:
        sums.add_(cut.times(torch.bmm(queries, asked), factor[-len(sums) // cut.blocks :]))


def states(part: Read, before: State | None, cut: Cut, count: int) -> Tensor:
    """Return the states [n, B, G, F, columns]: the one before, then after each of `count` chunks.

    Chunk after chunk: a product with zeros would let an overflow of later keys into earlier rows.
    """
    some = count * cut.blocks
    keys = part.keys[:some].transpose(1, 2)
    values = cut.times(part.values, part.factors.added)[:some]
    if torch.is_grad_enabled() or is_transformed():
        added = torch.bmm(keys, values).unflatten(0, (count, cut.batch, cut.groups))
        return _at_once(added, part.ends, before)
    first = 0 if before is None else 1
    shape = (first + count, cut.batch, cut.groups, keys.shape[1], values.shape[2])
    known = values.new_empty(shape)
    torch.bmm(keys, values, out=known[first:].flatten(0, 2))
    if before is not None:
        known[0] = before.sums
    kept = part.factors.kept
    for n in range(1, len(known)):
        if kept is None:
            known[n] += known[n - 1]
        else:
            known[n].addcmul_(known[n - 1], kept[n - first, ..., None].to(known.dtype))
    return known


def _at_once(added: Tensor, ends: Marks, before: State | None) -> Tensor:
    """Return the same states by one product, whose graph does not depend on how many there are."""
    ends = ends.of(slice(0, len(added)))
    if before is not None:
        added = torch.cat([before.sums[None], added])
        ends = before.mark.before(ends)
    kept = ends.passed_on()
    if kept is None:
        return added.cumsum(0)
    kept = kept.expand(-1, -1, -1, added.shape[2]).to(added.dtype)
    return torch.einsum("tnbg,nbgfc->tbgfc", kept, added)


class Slopes(NamedTuple):
    """Gradients.

    Args:
        queries: of the features of the queries [M, rows, F], None if there are none.
        keys: of the features of the keys [M, C, F], None if there are none.
        values: of the values times their factors [M, C, columns].
        state: of the sums before [B, G, F, columns]; None = there are none.
    """

    queries: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    state: Tensor | None


def of_add(part: Read, before: State | None, cut: Cut, to_state: Tensor) -> Slopes:
    """Return the gradients of `running.add`, given that of the state after it."""
    keys, values = torch.zeros_like(part.keys), torch.zeros_like(part.values)
    slopes = Slopes(None, keys, values, None)
    return _through_states(slopes, part, before, cut, [], to_state)


def of_ask(part: Read, state: State, to_sums: Tensor, to_state: Tensor | None) -> Slopes:
    """Return the gradients of `running.ask`, given those of its sums and of later uses."""
    sums = state.sums.flatten(0, 1)
    asked = torch.bmm(part.queries.transpose(1, 2), to_sums).view_as(state.sums)
    queries = torch.bmm(to_sums, sums.transpose(1, 2))
    return Slopes(queries, None, None, asked if to_state is None else asked.add_(to_state))


def of_scan(
    part: Read, before: State | None, cut: Cut, to_sums: Tensor, to_state: Tensor | None
) -> Slopes:
    """Return the gradients of `running.scan`, given those of its sums and of the state after it."""
    pairs = cut.visible(torch.bmm(part.queries, part.keys.transpose(1, 2)), part.factors.pairs)
    values = torch.bmm(pairs.transpose(1, 2), to_sums)
    to_pairs = torch.bmm(to_sums, part.values.transpose(1, 2))
    to_pairs = cut.visible(to_pairs, part.factors.pairs)
    queries = torch.bmm(to_pairs, part.keys)
    keys = torch.bmm(to_pairs.transpose(1, 2), part.queries)
    to_asked = []
    first = unasked(before, cut)
    if first < len(to_sums):
        asking = cut.times(to_sums, part.factors.asked)[first:]
        after = states(part, before, cut, cut.chunks - 1).flatten(0, 2)
        queries[first:].baddbmm_(asking, after.transpose(1, 2))
        to_asked = torch.bmm(part.queries[first:].transpose(1, 2), asking)
        to_asked = to_asked.unflatten(0, (-1, cut.batch, cut.groups)).unbind(0)
    slopes = Slopes(queries, keys, values, None)
    return _through_states(slopes, part, before, cut, to_asked, to_state)


def _through_states(
    slopes: Slopes,
    part: Read,
    before: State | None,
    cut: Cut,
    to_asked: Sequence[Tensor],
    to_state: Tensor | None,
) -> Slopes:
    """Add what the keys and values of each chunk mean for later states, in place.

    Args:
        slopes: what they mean within their chunks.
        part: the stretch.
        before: the state before it.
        cut: its chunks.
        to_asked: gradients of the states that the last chunks ask.
        to_state: gradient of the state after the last chunk; None = there is no use of it.
    """
    added = []  # gradient of each chunk's own sums, the last one first
    kept = part.factors.kept
    for n in reversed(range(cut.chunks)):
        if to_state is not None:
            added.append(to_state)
            if kept is not None:
                to_state = to_state * kept[n, ..., None].to(to_state.dtype)
        place = n - cut.chunks + len(to_asked)
        if place >= 0:
            to_state = to_asked[place] if to_state is None else to_state + to_asked[place]
    if added:
        to_added = torch.stack(added[::-1]).flatten(0, 2)
        some, factor = len(to_added), part.factors.added
        values = cut.times(part.values, factor)[:some]
        slopes.keys[:some].baddbmm_(values, to_added.transpose(1, 2))
        more = torch.bmm(part.keys[:some], to_added)
        slopes.values[:some] += cut.times(more, None if factor is None else factor[: len(added)])
    return slopes._replace(state=None if before is None else to_state)
