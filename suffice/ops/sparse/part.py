"""Parts: batches of equal tiles of queries and keys, each with what it allows.

Letters: T queries, S keys; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from suffice.ops.sparse.indices import Gathered, Run

Allowed = Callable[[Tensor, Tensor], Tensor]
EVALUATED = 1 << 20  # pairs whose permission is asked at a time


@dataclass(frozen=True)
class Part:
    """Equal tiles.

    Args:
        queries: indices of the queries.
        keys: indices of the keys, as many tiles.
        allowed: bool [n or 1, r or 1, c]; None = every pair of the tiles.
    """

    queries: Run
    keys: Run | Gathered
    allowed: Tensor | None

    def some(self, first: int, last: int) -> Part:
        """Return the tiles first to last - 1."""
        mask = self.allowed
        if mask is not None and len(mask) > 1:
            mask = mask[first:last]
        return Part(self.queries.part(first, last), self.keys.part(first, last), mask)

    @property
    def pairs(self) -> int:
        """The pairs that are computed."""
        return self.queries.tiles * self.queries.count * self.keys.count


@dataclass(frozen=True)
class Grid:
    """A sequence, or every step-th position of one: index i of it is start + i * step.

    Args:
        q_start: first query index.
        k_start: first key index.
        q_offset: position of query index 0.
        step: distance of neighbours.
        queries: T.
        keys: S.
    """

    q_start: int
    k_start: int
    q_offset: int
    step: int
    queries: int
    keys: int

    def parts(
        self,
        queries: Run,
        keys: Run | Gathered,
        allowed: Allowed,
        own: Tensor | None = None,
    ) -> list[Part]:
        """Return the tiles with their masks, moved to the whole sequence; tiles alike share one.

        Args:
            queries: in the grid's own indices.
            keys: likewise.
            allowed: of positions.
            own: bool [tiles, r or 1, c], False = another part computes this pair; None = none does.
        """
        queries, keys = self._move(queries, self.q_start), self._move(keys, self.k_start)
        at_once = max(1, EVALUATED // (queries.count * keys.count))
        masks = []
        for first in range(0, queries.tiles, at_once):
            last = min(first + at_once, queries.tiles)
            some = queries.part(first, last), keys.part(first, last)
            q, k = self.q_offset + some[0].index(), some[1].index()
            mask = allowed(q[..., None], k[:, None])
            mask = mask.expand(last - first, queries.count, keys.count)
            if own is not None:
                mask = mask & own[first:last]
            masks.append(mask)
        mask = torch.cat(masks)
        changes = (mask[1:] != mask[:-1]).flatten(1).any(1).nonzero().flatten() + 1
        if len(changes) > mask.shape[0] // 4:
            return [Part(queries, keys, _narrow(mask))]
        ends = [0, *changes.tolist(), queries.tiles]
        return [
            Part(queries.part(a, b), keys.part(a, b), _narrow(mask[a : a + 1]))
            for a, b in pairwise(ends)
            if bool(mask[a].any())
        ]

    def allowed(self, queries: Run, keys: Run, allowed: Allowed) -> Tensor:
        """Return the mask [tiles, r, c] of tiles in the grid's own indices."""
        q, k = self._move(queries, self.q_start).index(), self._move(keys, self.k_start).index()
        mask = allowed((self.q_offset + q)[..., None], k[:, None])
        return mask.expand(queries.tiles, queries.count, keys.count)

    def positions(self, keys: Tensor) -> Tensor:
        """Return the positions of key indices."""
        return self.k_start + keys * self.step

    def _move(self, run, start: int):  # noqa: ANN001, ANN202 - Run to Run, Gathered to Gathered
        if isinstance(run, Gathered):
            return Gathered(start + run.starts, run.block)  # only ever with step 1
        return Run(
            start + run.start * self.step,
            run.tiles,
            run.tile_step * self.step,
            run.count,
            run.step * self.step,
        )


def _narrow(mask: Tensor) -> Tensor | None:
    """Return a mask [n, r, c] as small as it goes: None where all is allowed, one row for all."""
    if bool(mask.all()):
        return None
    return (mask[:, :1] if bool((mask == mask[:, :1]).all()) else mask).clone()
