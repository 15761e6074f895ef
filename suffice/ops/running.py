"""Running sums of features: one stretch of a sequence at a time, the state handed on.

State of a key/value head after some keys: sum over them of phi(k_s) [v_s, 1]^T, [F, columns]. A
query asks it for phi(q) . state: its weighted values, and beside them the sum of its weights. A
stretch is cut into chunks: a query sums the pairs of its own chunk and asks the state before it.

Letters: B batch, H query heads, G key/value heads, L = N C positions of a stretch, N chunks of C,
F features, D and E head widths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.kernels import FeatureMap
from suffice.kernels.chunks import columns
from suffice.ops.levels import Factors, Keys, Marks, factors


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


class Cut(NamedTuple):
    """How a stretch is cut: B rows, G key/value heads, N chunks of C positions."""

    batch: int
    groups: int
    chunks: int
    chunk: int

    @property
    def blocks(self) -> int:
        """Products of a batch: one for each row and key/value head."""
        return self.batch * self.groups

    def apart(self, x: Tensor) -> Tensor:
        """Return [B, heads, L, D] as [N B G, rows, D]; the query heads of a group are rows."""
        exact = torch.promote_types(x.dtype, torch.float32)
        x = x.to(exact).unflatten(2, (self.chunks, self.chunk)).unflatten(1, (self.groups, -1))
        return x.permute(3, 0, 1, 2, 4, 5).reshape(self.chunks * self.blocks, -1, x.shape[-1])

    def together(self, x: Tensor) -> Tensor:
        """Return [N B G, rows, E] as [B, heads, L, E]."""
        x = x.unflatten(1, (-1, self.chunk)).unflatten(0, (self.chunks, self.batch, self.groups))
        return x.permute(1, 2, 3, 0, 4, 5).flatten(1, 2).flatten(2, 3)

    def along(self, x: Tensor | None) -> Tensor | None:
        """Return [B, L] as [N, B, 1, C]."""
        if x is None:
            return None
        return x.unflatten(1, (self.chunks, self.chunk)).transpose(0, 1)[:, :, None]

    def rows(self, factor: Tensor) -> Tensor:
        """Return factors [N, B, G or 1, ...] of every chunk, row and head: [N B G, ...]."""
        return factor.expand(-1, -1, self.groups, *factor.shape[3:]).flatten(0, 2)

    def times(self, x: Tensor, factor: Tensor | None) -> Tensor:
        """Return x [N B G, C, W] times factors [N, B, G or 1, C] of its positions; None = 1."""
        return x if factor is None else x * self.rows(factor)[..., None].to(x.dtype)


class Read(NamedTuple):
    """The keys of a stretch, read.

    Args:
        phi: [N B G, C, F].
        values: [N B G, C, columns], the values and ones beside them, times their factors.
        factors: of their sums.
        ends: the mark of each chunk's last position.
    """

    phi: Tensor
    values: Tensor
    factors: Factors
    ends: Marks


def add(stretch: Stretch, before: State | None, features: FeatureMap) -> State:
    """Return the state after the keys of a stretch, all one chunk, of one document."""
    batch, groups, length, _ = stretch.k.shape
    cut = Cut(batch, groups, 1, length)
    keys = _read(stretch, before, features, cut, pairs=False)
    return State(_states(keys, before, cut, 1)[-1], keys.ends)


def ask(q: Tensor, state: State, features: FeatureMap) -> Tensor:
    """Return the sums [B G, rows, columns] of queries that see the keys of a state, no others."""
    cut = Cut(q.shape[0], state.sums.shape[1], 1, q.shape[2])
    return torch.bmm(features.queries(cut.apart(q)), state.sums.flatten(0, 1))


def scan(
    stretch: Stretch, before: State | None, features: FeatureMap, *, chunk: int, last: bool
) -> tuple[Tensor, State | None]:
    """Return the sums [N B G, rows, columns] of queries that see keys up to their own, the state.

    Args:
        stretch: the positions; `chunk` divides their number.
        before: the state before them; None = there are no keys before.
        features: phi.
        chunk: C.
        last: True if no stretch follows, so that no state is needed after this one.
    """
    batch, groups, length, _ = stretch.k.shape
    cut = Cut(batch, groups, length // chunk, chunk)
    phi = features.queries(cut.apart(stretch.q))
    keys = _read(stretch, before, features, cut, pairs=True)
    pairs = _visible(torch.bmm(phi, keys.phi.transpose(1, 2)), keys.factors.pairs, cut)
    sums = torch.bmm(pairs, keys.values)
    states = _states(keys, before, cut, cut.chunks - 1 if last else cut.chunks)
    first = 0 if before is not None else 1  # nothing to ask in a chunk without keys before it
    if first < cut.chunks:
        asked = states[: cut.chunks - first].flatten(0, 2)
        _ask_chunks(sums[first * cut.blocks :], phi[first * cut.blocks :], asked, keys, cut)
    return sums, None if last else State(states[-1], keys.ends.of(slice(-1, None)))


def _ask_chunks(sums: Tensor, phi: Tensor, states: Tensor, keys: Read, cut: Cut) -> None:
    """Add what each chunk's queries get from the state before it, in place."""
    asked = keys.factors.asked
    if asked is None:
        sums.baddbmm_(phi, states)
        return
    factor = cut.rows(asked)[-len(sums) :].to(sums.dtype)
    factor = factor.repeat(1, phi.shape[1] // cut.chunk)[..., None]
    sums.addcmul_(torch.bmm(phi, states), factor)


def _visible(pairs: Tensor, factor: Tensor | None, cut: Cut) -> Tensor:
    """Return products [N B G, rows, C] without those of later keys and of other documents."""
    if factor is None and pairs.shape[1] == cut.chunk:
        return pairs.tril_()
    square = pairs.unflatten(1, (-1, cut.chunk))
    if factor is not None:
        square = square * cut.rows(factor)[:, None].to(pairs.dtype)
    return square.tril().flatten(1, 2)


def _read(
    stretch: Stretch, before: State | None, features: FeatureMap, cut: Cut, *, pairs: bool
) -> Read:
    """Read the keys of a stretch."""
    phi, logs = features.keys(cut.apart(stretch.k))
    if logs is not None:
        logs = logs.unflatten(0, (cut.chunks, cut.batch, cut.groups))
    keys = Keys(logs, cut.along(stretch.seen), cut.along(stretch.runs))
    known, ends = factors(keys, None if before is None else before.mark, pairs=pairs)
    v = cut.apart(stretch.v)
    values = F.pad(v, (0, columns(v.shape[2]) - v.shape[2]), value=1.0)
    return Read(phi, cut.times(values, known.value), known, ends)


def _states(keys: Read, before: State | None, cut: Cut, count: int) -> Tensor:
    """Return the states [n, B, G, F, columns]: the one before, then after each of `count` chunks.

    Chunk after chunk: a product with zeros would let an overflow of later keys into earlier rows.
    """
    some = count * cut.blocks
    values = cut.times(keys.values, keys.factors.added)[:some]
    added = torch.bmm(keys.phi[:some].transpose(1, 2), values)
    added = added.unflatten(0, (count, cut.batch, cut.groups))
    if torch.compiler.is_compiling():
        return _states_at_once(added, keys.ends, before)
    states = [] if before is None else [before.sums]
    for n, part in enumerate(added.unbind(0)):
        if not states:
            states.append(part)
        elif keys.factors.kept is None:
            states.append(states[-1] + part)
        else:
            kept = keys.factors.kept[n, ..., None].to(part.dtype)
            states.append(torch.addcmul(part, states[-1], kept))
    return torch.stack(states) if states else added


def _states_at_once(added: Tensor, ends: Marks, before: State | None) -> Tensor:
    """Return the same states by one product, whose graph does not depend on how many there are."""
    ends = ends.of(slice(0, len(added)))
    if before is not None:
        added = torch.cat([before.sums[None], added])
        ends = before.mark.before(ends)
    kept = ends.passed_on()
    if kept is None:
        return added.cumsum(0)
    return torch.einsum(
        "tnbg,nbgfc->tbgfc", kept.expand(-1, -1, -1, added.shape[2]).to(added.dtype), added
    )
