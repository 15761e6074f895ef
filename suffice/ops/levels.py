"""What keeps sums of features in range and documents apart, chunk by chunk.

A stabilised feature map gives key s the logarithm a_s of its scale. Query t takes its keys
relative to a reference c_t that no a_s it sees exceeds, so every factor exp(a_s - c_t) is at most
1, and c_t depends on nothing the query does not see: no later key, no other row, no other
document. References are multiples of STEP, so they seldom change along a sequence; where they do
not, the factors between two positions are 1 and need not be computed.

Letters: N chunks of C positions, B batch, G key/value heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops.looked import looked_into

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
    return not looked_into(marks.steps) and bool((marks.steps == start.steps).all())
