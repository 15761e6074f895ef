"""Running sums of features: one stretch of a sequence at a time, the state handed on.

State of a key/value head after some keys: sum over them of phi(k_s) [v_s, 1]^T, [F, columns]. A
query asks it for phi(q) . state: its weighted values, and beside them the sum of its weights. A
stretch is cut into chunks: a query sums the pairs of its own chunk and asks the state before it.

Letters: B batch, H query heads, G key/value heads, L = N C positions of a stretch, N chunks of C,
M = N B G products of a batch, F features, D and E head widths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.kernels.chunks import columns
from suffice.ops.levels import Factors, Keys, Marks, factors
from suffice.ops.looked import looked_into


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
    if torch.is_grad_enabled() or looked_into(keys):
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
