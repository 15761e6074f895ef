"""A sparse pattern cut into tiles: which queries meet which keys in one dense product.

A part is a batch of equal tiles. Where the tiles lie at regular steps (a window, global tokens,
residues of a stride) queries and keys are strided views and nothing is copied; where they do not
(random blocks) the keys are gathered block by block. Every allowed pair lies in exactly one tile.

Letters: T queries, S keys; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

Allowed = Callable[[Tensor, Tensor], Tensor]
ROWS = 512  # queries of one tile where all read the same keys
FEW = 8  # indices; below, adding block by block costs more than index by index
EVALUATED = 1 << 20  # pairs whose permission is asked at a time


@dataclass(frozen=True)
class Run:
    """Indices at regular steps: tile i holds start + i * tile_step + j * step for j < count."""

    start: int
    tiles: int
    tile_step: int
    count: int
    step: int = 1

    def view(self, x: Tensor) -> Tensor:
        """Return x [B, H, T, ...] as [B, H, tiles, count, ...]; nothing is copied."""
        batch, heads, along, *rest = x.stride()
        return x.as_strided(
            (*x.shape[:2], self.tiles, self.count, *x.shape[3:]),
            (batch, heads, self.tile_step * along, self.step * along, *rest),
            x.storage_offset() + self.start * along,
        )

    def index(self) -> Tensor:
        """Return the indices [tiles, count]."""
        tiles = torch.arange(self.tiles)[:, None] * self.tile_step
        return self.start + tiles + torch.arange(self.count) * self.step

    def part(self, first: int, last: int) -> Run:
        """Return the tiles first to last - 1."""
        return Run(
            self.start + first * self.tile_step, last - first, self.tile_step, self.count, self.step
        )

    def add(self, total: Tensor, tiles: Tensor) -> None:
        """Add tiles [B, H, tiles, count, ...] to where they come from in total [B, H, T, ...]."""
        if self.tile_step == 0:
            Run(self.start, 1, 0, self.count, self.step).view(total).add_(tiles.sum(2, True))
            return
        apart, between = divmod(self.tile_step, self.step)
        if self.tiles == 1 or between or apart >= self.count:
            self.view(total).add_(tiles)
            return
        for first in range(0, self.count, apart):  # tiles overlap: one shift at a time
            piece = tiles[:, :, :, first : first + apart]
            start = self.start + first * self.step
            shifted = Run(start, self.tiles, self.tile_step, piece.shape[3], self.step)
            shifted.view(total).add_(piece)


@dataclass(frozen=True)
class Gathered:
    """Blocks of neighbouring indices: tile i holds the blocks that begin at starts[i].

    Args:
        starts: int [tiles, blocks]
        block: indices of a block.
    """

    starts: Tensor
    block: int

    @property
    def tiles(self) -> int:
        """Tiles."""
        return self.starts.shape[0]

    @property
    def count(self) -> int:
        """Indices of a tile."""
        return self.starts.shape[1] * self.block

    def view(self, x: Tensor) -> Tensor:
        """Return the gathered copy [B, H, tiles, count, ...] of x [B, H, T, ...]."""
        every = Run(0, x.shape[2] - self.block + 1, 1, self.block).view(x)
        taken = every.index_select(2, self.starts.flatten().to(x.device))
        return taken.reshape(*x.shape[:2], self.tiles, self.count, *x.shape[3:])

    def index(self) -> Tensor:
        """Return the indices [tiles, count]."""
        return (self.starts[..., None] + torch.arange(self.block)).flatten(1)

    def part(self, first: int, last: int) -> Gathered:
        """Return the tiles first to last - 1."""
        return Gathered(self.starts[first:last], self.block)

    def add(self, total: Tensor, tiles: Tensor) -> None:
        """Add tiles [B, H, tiles, count, ...] to where they come from in total [B, H, T, ...]."""
        if self.block < FEW:
            total.index_add_(2, self.index().flatten().to(total.device), tiles.flatten(2, 3))
            return
        pieces = tiles.unflatten(3, (-1, self.block))
        for tile, starts in enumerate(self.starts.tolist()):
            for place, start in enumerate(starts):
                total[:, :, start : start + self.block].add_(pieces[:, :, tile, place])


@dataclass(frozen=True)
class Part:
    """Equal tiles.

    Args:
        queries: indices of the queries.
        keys: indices of the keys, as many tiles.
        allowed: bool [n or 1, r, c]; None = every pair of the tiles.
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

    def part(
        self,
        queries: Run,
        keys: Run | Gathered,
        allowed: Allowed,
        own: Tensor | None = None,
    ) -> Part | None:
        """Return the tiles with their mask, moved to the whole sequence; None if nothing is seen.

        Args:
            queries: in the grid's own indices.
            keys: likewise.
            allowed: of positions.
            own: bool [tiles, keys of a tile], False = another tile computes this key; None = no.
        """
        queries, keys = self._move(queries, self.q_start), self._move(keys, self.k_start)
        at_once = max(1, EVALUATED // (queries.count * keys.count))
        masks = []
        for first in range(0, queries.tiles, at_once):
            last = min(first + at_once, queries.tiles)
            q = self.q_offset + queries.part(first, last).index()
            mask = allowed(q[..., None], keys.part(first, last).index()[:, None])
            mask = mask.expand(last - first, queries.count, keys.count)
            if own is not None:
                mask = mask & own[first:last, None]
            masks.append(mask)
        if not any(bool(mask.any()) for mask in masks):
            return None
        if all(bool(mask.all()) for mask in masks):
            return Part(queries, keys, None)
        pattern = masks[0][:1]
        alike = all(bool((mask == pattern).all()) for mask in masks)
        return Part(queries, keys, pattern.clone() if alike else torch.cat(masks))

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


def tiles_of(touched: Tensor, allowed: Allowed, grid: Grid, block: int, rows: int) -> list[Part]:
    """Return the parts that cover every allowed pair of a grid exactly once.

    Args:
        touched: bool [ceil(T / block), ceil(S / block)]; nothing is allowed elsewhere.
        allowed: the pattern, of positions.
        grid: the sequence.
        block: side of a block of `touched`.
        rows: blocks of queries that make one tile.
    """
    return _Cut(touched, allowed, grid, block, rows).parts()


class _Cut:
    """The work of `tiles_of`."""

    def __init__(
        self, touched: Tensor, allowed: Allowed, grid: Grid, block: int, rows: int
    ) -> None:
        self.allowed, self.grid, self.block = allowed, grid, block
        self.height = block * rows
        count = -(-grid.queries // self.height)
        lists = [
            set(touched[i * rows : (i + 1) * rows].any(0).nonzero().flatten().tolist())
            for i in range(count)
        ]
        self.lists = {row: found for row, found in enumerate(lists) if found}
        self.found: list[Part | None] = []

    def parts(self) -> list[Part]:
        """Return the parts, the largest first."""
        if not self.lists:
            return []
        self._wide_rows()
        self._ends()
        self._shared_columns()
        self._bands()
        self._rest()
        parts = [part for part in self.found if part is not None]
        return sorted(parts, key=lambda part: -part.queries.tiles * part.queries.count)

    def _wide_rows(self) -> None:
        """Rows that read much more than the others: each run of them is one dense product."""
        sizes = sorted(map(len, self.lists.values()))
        wide = max(4 * sizes[len(sizes) // 2], 8)
        self._dense([row for row, found in self.lists.items() if len(found) >= wide])

    def _ends(self) -> None:
        """A last row that is not full, and a row that reads a key block that is not."""
        if self.grid.queries % self.height:
            self._dense([row for row in self.lists if (row + 1) * self.height > self.grid.queries])

    def _shared_columns(self) -> None:
        """Key blocks that most rows read: one list of keys for all."""
        if len(self.lists) < 4:  # noqa: PLR2004
            return
        counts = torch.zeros(self._columns(), dtype=torch.long)
        for found in self.lists.values():
            counts[list(found)] += 1
        shared = set((counts * 4 >= 3 * len(self.lists)).nonzero().flatten().tolist())
        if not shared:
            return
        keys = self._used(sorted(shared))
        for first, last in _runs(sorted(self.lists)):
            self._rows_on_keys(first, last, keys)
        self._take(dict.fromkeys(self.lists, shared))

    def _used(self, columns: list[int]) -> list[Run] | Gathered:
        """Return the keys of these block columns that some row may see, as runs."""
        seen: list[int] = []
        rows = torch.cat([self._positions(row) for row in sorted(self.lists)])
        for column in columns:
            keys = torch.arange(column * self.block, self._end(column))
            positions = self.grid.k_start + keys * self.grid.step
            used = torch.zeros(len(keys), dtype=torch.bool)
            for some in rows.split(4096):
                used |= (
                    self.allowed(some[:, None], positions[None]).expand(len(some), len(keys)).any(0)
                )
            seen += keys[used].tolist()
        return _regular(seen)

    def _rows_on_keys(self, first: int, last: int, keys: list[Run] | Gathered) -> None:
        """Rows first to last - 1 on the same keys."""
        low, high = first * self.height, min(last * self.height, self.grid.queries)
        if isinstance(keys, Gathered):
            self._emit(Run(low, 1, high - low, high - low), keys)
            return
        whole = (high - low) // ROWS
        for run in keys:
            for start, tiles, count in (
                (low, whole, ROWS),
                (low + whole * ROWS, 1, (high - low) % ROWS),
            ):
                if tiles and count:
                    queries = Run(start, tiles, count, count)
                    same = Run(run.start, tiles, 0, run.count, run.step)
                    self._emit(queries, same)

    def _bands(self) -> None:
        """Offsets of key blocks that most rows read, at the same distance from themselves."""
        if len(self.lists) < 4:  # noqa: PLR2004
            return
        per_row = self.height // self.block
        counts: dict[int, int] = {}
        for row, found in self.lists.items():
            for column in found:
                counts[column - row * per_row] = counts.get(column - row * per_row, 0) + 1
        common = sorted(o for o, n in counts.items() if 2 * n >= len(self.lists))
        for low, high in _runs(common):
            band = range(low, high)
            whole = [
                row
                for row, found in self.lists.items()
                if found.issuperset(row * per_row + o for o in band)
                and self._end(row * per_row + high - 1) == (row * per_row + high) * self.block
            ]
            for first, last in _runs(whole):
                if last - first < 2:  # noqa: PLR2004
                    continue
                queries = Run(first * self.height, last - first, self.height, self.height)
                start = (first * per_row + low) * self.block
                keys = Run(start, last - first, self.height, (high - low) * self.block)
                self._emit(queries, keys)
                self._take({row: {row * per_row + o for o in band} for row in range(first, last)})

    def _rest(self) -> None:
        """What is left: neighbours that read neighbours densely, others gathered."""
        for first, last in _runs(sorted(self.lists)):
            rows = list(range(first, last))
            read = set().union(*(self.lists[row] for row in rows))
            listed = sum(len(self.lists[row]) for row in rows)
            few = sum(hi - lo for lo, hi in _runs(sorted(read))) * len(rows) <= 2 * listed
            if few or self.grid.step > 1 or self.grid.keys < self.block:
                self._dense(rows)
        for first, last in _runs(sorted(self.lists)):
            self._gather(first, last)

    def _gather(self, first: int, last: int) -> None:
        """Rows first to last - 1, each on its own blocks; short lists are filled up and masked."""
        lists = [sorted(self.lists[row]) for row in range(first, last)]
        most = max(map(len, lists))
        columns = torch.tensor([[*found, *found[:1] * (most - len(found))] for found in lists])
        filled = torch.tensor([[False] * len(f) + [True] * (most - len(f)) for f in lists])
        starts = (columns * self.block).clamp(max=self.grid.keys - self.block)
        index = starts[..., None] + torch.arange(self.block)
        own = (index >= columns[..., None] * self.block) & ~filled[..., None]
        queries = Run(first * self.height, last - first, self.height, self.height)
        self._emit(queries, Gathered(starts, self.block), own.flatten(1))

    def _dense(self, rows: list[int]) -> None:
        """Each run of rows on all the keys that one of them reads."""
        for first, last in _runs(sorted(rows)):
            read = set().union(*(self.lists[row] for row in range(first, last)))
            low, high = first * self.height, min(last * self.height, self.grid.queries)
            for column, end in _runs(sorted(read)):
                keys = Run(column * self.block, 1, 0, self._end(end - 1) - column * self.block)
                self._emit(Run(low, 1, high - low, high - low), keys)
        for row in rows:
            del self.lists[row]

    def _take(self, taken: dict[int, set[int]]) -> None:
        self.lists = {
            row: left
            for row, found in self.lists.items()
            if (left := found - taken.get(row, set()))
        }

    def _emit(self, queries: Run, keys: Run | Gathered, own: Tensor | None = None) -> None:
        self.found.append(self.grid.part(queries, keys, self.allowed, own))

    def _columns(self) -> int:
        return -(-self.grid.keys // self.block)

    def _end(self, column: int) -> int:
        return min((column + 1) * self.block, self.grid.keys)

    def _positions(self, row: int) -> Tensor:
        index = torch.arange(row * self.height, min((row + 1) * self.height, self.grid.queries))
        return self.grid.q_offset + self.grid.q_start + index * self.grid.step


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs of neighbours: (first, last + 1)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def _regular(numbers: list[int]) -> list[Run] | Gathered:
    """Return ascending numbers as few runs, or as a list to gather."""
    runs = _runs(numbers)
    sizes = {high - low for low, high in runs}
    gaps = {b - a for (a, _), (b, _) in pairwise(runs)}
    if sizes == {1} and len(gaps) == 1:
        return [Run(runs[0][0], 1, 0, len(runs), gaps.pop())]
    if len(runs) < 4:  # noqa: PLR2004
        return [Run(low, 1, 0, high - low) for low, high in runs]
    size = sizes.pop() if len(sizes) == 1 else 1
    starts = [n for low, high in runs for n in range(low, high, size)]
    return Gathered(torch.tensor([starts]), size)
