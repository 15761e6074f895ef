"""A sparse pattern cut into tiles: which queries meet which keys in one dense product.

Where tiles lie at regular steps (a window, global tokens) queries and keys are strided views and
nothing is copied; where they do not (random blocks) the keys are gathered block by block. Every
allowed pair lies in exactly one tile.

Letters: T queries, S keys; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

FEW = 8  # indices; below, adding block by block costs more than index by index


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

    def _move(self, run, start: int):
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


ROWS = 512  # queries of one tile where all read the same keys
FEW_ROWS = 4  # rows that are worth a product of their own
APART = 3  # runs of keys that are worth a product each
STRIP = 16  # queries looked at together where a few read much more than their neighbours


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
        self.lists = {row: columns for row, columns in enumerate(lists) if columns}
        self.tiles: list[Part] = []

    def parts(self) -> list[Part]:
        """Return the parts, the largest first."""
        if not self.lists:
            return []
        self._wide_rows()
        self._shared_columns()
        self._ends()
        self._bands()
        self._rest()
        return sorted(self.tiles, key=lambda part: -part.queries.tiles * part.queries.count)

    def _wide_rows(self) -> None:
        """Queries that read much more than the others: each run of them is one dense product.

        They are found strip by strip, because a few global queries do not widen their block.
        """
        sizes = sorted(map(len, self.lists.values()))
        wide = max(4 * sizes[len(sizes) // 2], 8)
        for row in [row for row, columns in self.lists.items() if len(columns) >= wide]:
            strips = self._strips(row)
            for alike in (
                [first for first, columns in strips.items() if len(columns) >= wide],
                [first for first, columns in strips.items() if 0 < len(columns) < wide],
            ):
                for low, high in _runs([first // STRIP for first in alike]):
                    read = set().union(*(strips[i * STRIP] for i in range(low, high)))
                    end = min(high * STRIP, (row + 1) * self.height, self.grid.queries)
                    self._hulls(low * STRIP, end, read)
            del self.lists[row]

    def _strips(self, row: int) -> dict[int, set[int]]:
        """Return which block columns the strips of a row read, by their first query."""
        columns = sorted(self.lists[row])
        first, last = row * self.height, min((row + 1) * self.height, self.grid.queries)
        strips = {}
        for low in range(first, last, STRIP):
            queries = Run(low, 1, 0, min(STRIP, last - low))
            strips[low] = {c for c in columns if bool(self._seen(queries, c).any())}
        return strips

    def _ends(self) -> None:
        """A last row that is not full, and a row that reads a key block that is not."""
        if self.grid.queries % self.height:
            self._dense([row for row in self.lists if (row + 1) * self.height > self.grid.queries])

    def _shared_columns(self) -> None:
        """Keys that most queries read: one list of keys for all rows."""
        if len(self.lists) < FEW_ROWS:
            return
        shared = self._read_by_most()
        runs = _runs(sorted(self.lists))
        keys: list[int] = []
        left: dict[int, set[int]] = {row: set() for row in self.lists}
        for column in shared:
            visible = {row: self._seen(self._row(row), column) for row in self.lists}
            far = [mask for row, mask in visible.items() if column in self.lists[row]]
            share = torch.cat(far[len(far) // 2 :]).double().mean(0)
            common = share >= share.max() / 2
            keys += (column * self.block + common.nonzero().flatten()).tolist()
            for row, mask in visible.items():
                if bool(mask[:, ~common].any()):
                    left[row].add(column)
        if not keys:
            return
        for first, last in runs:
            self._rows_on_keys(first, last, _regular(keys))
        self.lists = {
            row: rest
            for row, columns in self.lists.items()
            if (rest := (columns - set(shared)) | left[row])
        }
        self.allowed = _less(self.allowed, self.grid.positions(torch.tensor(keys)))

    def _read_by_most(self) -> list[int]:
        """Return the block columns that most rows read from the first one that does."""
        rows = sorted(self.lists)
        firsts: dict[int, int] = {}
        counts: dict[int, int] = {}
        for place, row in enumerate(rows):
            for column in self.lists[row]:
                firsts.setdefault(column, place)
                counts[column] = counts.get(column, 0) + 1
        steady = [
            column
            for column, count in counts.items()
            if count >= FEW_ROWS and 4 * count >= 3 * (len(rows) - firsts[column])
        ]
        many = [column for column in steady if 4 * counts[column] >= len(rows)]
        # the last columns of a window look steady too, but they are few rows' own
        return sorted(steady if 2 * len(many) >= len(steady) else many)

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
        if len(self.lists) < FEW_ROWS:
            return
        per_row = self.height // self.block
        counts: dict[int, int] = {}
        for row, columns in self.lists.items():
            for column in columns:
                counts[column - row * per_row] = counts.get(column - row * per_row, 0) + 1
        common = sorted(o for o, n in counts.items() if 2 * n >= len(self.lists))
        for low, high in _runs(common):
            band = range(low, high)
            whole = [
                row
                for row, columns in self.lists.items()
                if columns.issuperset(row * per_row + o for o in band)
                and self._end(row * per_row + high - 1) == (row * per_row + high) * self.block
            ]
            for first, last in _runs(whole):
                if last - first < 2:
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
            neighbours = len(_runs(sorted(read))) <= APART and len(read) * len(rows) <= 2 * listed
            if neighbours or self.grid.step > 1 or self.grid.keys < self.block:
                self._dense(rows)
        for first, last in _runs(sorted(self.lists)):
            self._gather(first, last)

    def _gather(self, first: int, last: int) -> None:
        """Rows first to last - 1, each on its own blocks; short lists are filled up and masked."""
        lists = [sorted(self.lists[row]) for row in range(first, last)]
        most = max(map(len, lists))
        columns = torch.tensor([[*row, *row[:1] * (most - len(row))] for row in lists])
        filled = torch.tensor([[False] * len(f) + [True] * (most - len(f)) for f in lists])
        starts = (columns * self.block).clamp(max=self.grid.keys - self.block)
        index = starts[..., None] + torch.arange(self.block)
        own = (index >= columns[..., None] * self.block) & ~filled[..., None]
        queries = Run(first * self.height, last - first, self.height, self.height)
        self._emit(queries, Gathered(starts, self.block), own.flatten(1)[:, None])

    def _dense(self, rows: list[int]) -> None:
        """Each run of rows on all the keys that one of them reads."""
        for first, last in _runs(sorted(rows)):
            read = set().union(*(self.lists[row] for row in range(first, last)))
            low, high = first * self.height, min(last * self.height, self.grid.queries)
            self._hulls(low, high, read, self._left(first, last)[: high - low])
        for row in rows:
            del self.lists[row]

    def _left(self, first: int, last: int) -> Tensor:
        """Return what no part has yet of rows first to last - 1: bool [r, S]."""
        left = torch.zeros(last - first, -(-self.grid.keys // self.block), dtype=torch.bool)
        for row in range(first, last):
            left[row - first, list(self.lists[row])] = True
        left = left.repeat_interleave(self.height, 0).repeat_interleave(self.block, 1)
        return left[:, : self.grid.keys]

    def _hulls(self, low: int, high: int, read: set[int], left: Tensor | None = None) -> None:
        """Queries low to high - 1 on each run of these block columns, less what is not left."""
        runs = _runs(sorted(read))
        if len(runs) > APART:
            runs = [(runs[0][0], runs[-1][1])]
        for column, end in runs:
            begin, stop = column * self.block, self._end(end - 1)
            own = None if left is None else left[None, :, begin:stop]
            self._emit(Run(low, 1, high - low, high - low), Run(begin, 1, 0, stop - begin), own)

    def _take(self, taken: dict[int, set[int]]) -> None:
        self.lists = {
            row: left
            for row, columns in self.lists.items()
            if (left := columns - taken.get(row, set()))
        }

    def _emit(self, queries: Run, keys: Run | Gathered, own: Tensor | None = None) -> None:
        self.tiles += self.grid.parts(queries, keys, self.allowed, own)

    def _end(self, column: int) -> int:
        return min((column + 1) * self.block, self.grid.keys)

    def _row(self, row: int) -> Run:
        low, high = row * self.height, min((row + 1) * self.height, self.grid.queries)
        return Run(low, 1, 0, high - low)

    def _seen(self, queries: Run, column: int) -> Tensor:
        """Return which keys of a block column the queries may see: bool [r, keys]."""
        keys = Run(column * self.block, 1, 0, self._end(column) - column * self.block)
        return self.grid.allowed(queries, keys, self.allowed)[0]


def _less(allowed: Allowed, positions: Tensor) -> Allowed:
    """Return the predicate without the keys at these positions."""
    return lambda q, k: allowed(q, k) & ~torch.isin(k, positions)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs of neighbours: (first, last + 1)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _regular(numbers: list[int]) -> list[Run] | Gathered:
    """Return ascending numbers as few runs, or as a list to gather."""
    runs = _runs(numbers)
    sizes = {high - low for low, high in runs}
    gaps = {b - a for (a, _), (b, _) in pairwise(runs)}
    if sizes == {1} and len(gaps) == 1:
        return [Run(runs[0][0], 1, 0, len(runs), gaps.pop())]
    if len(runs) <= APART:
        return [Run(low, 1, 0, high - low) for low, high in runs]
    size = sizes.pop() if len(sizes) == 1 else 1
    starts = [n for low, high in runs for n in range(low, high, size)]
    return Gathered(torch.tensor([starts]), size)
