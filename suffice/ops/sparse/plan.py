"""Cuts a pattern into tiles, once: every allowed pair lies in exactly one of them.

The block layout of a pattern says where something is allowed. Pairs at distances that are multiples
of a stride would touch every block; in the order of residues they are dense, so such terms of a
pattern are cut residue by residue.

Letters: T queries, S keys; n tiles of a part, each of r queries and c keys.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, reduce
from itertools import pairwise, product
from operator import and_, or_
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops.sparse.tiles import Allowed, Gathered, Grid, Indices, TileSet
from suffice.patterns import And, Or, Pattern

BLOCK = 64  # positions; the finest tile
TALL = 3  # blocks of queries of a tall tile; the kernel works on 64 queries at a time from 192 on
# speed of tall tiles, relative; judged by benchmarks/mechanisms.py --case sparse
FORWARD, BACKWARD = 1.35, 1.75
DENSE_KEYS = 1024  # keys of one residue; below, nothing is cut out of it
ROWS = 512  # queries of one tile where all read the same keys
FEW_ROWS = 4  # rows that are worth a product of their own
APART = 3  # runs of keys that are worth a product each
STRIP = 16  # queries compared with their neighbours, where a few read much more keys


class Cut(NamedTuple):
    """The tiles of a pattern: every allowed pair lies in exactly one of them."""

    parts: tuple[TileSet, ...]
    fresh: tuple[bool, ...]  # for each part, True if no earlier part has its queries
    complete: bool  # every query is in some part

    @property
    def pairs(self) -> int:
        return sum(part.pairs for part in self.parts)


@lru_cache(maxsize=64)
def cut(pattern: Pattern, queries: int, keys: int, speed: float = FORWARD) -> Cut:
    """Return the tiles of a pattern whose heads are alike; `speed` is FORWARD or BACKWARD."""
    with torch.inference_mode(False), torch.device("cpu"):
        parts = _parts(pattern, queries, keys, speed)
        covered = torch.zeros(queries, dtype=torch.bool)
        fresh = []
        for part in parts:
            index = part.queries.index().flatten()
            fresh.append(not bool(covered[index].any()))
            covered[index] = True
        return Cut(tuple(parts), tuple(fresh), bool(covered.all()))


def _parts(pattern: Pattern, queries: int, keys: int, speed: float) -> list[TileSet]:
    terms = _distributed(pattern)
    if all(term.spacing == 1 for term in terms):
        terms = [pattern]
    near = [term for term in terms if term.spacing == 1]
    grid = Grid(0, 0, keys - queries, 1, queries, keys)
    parts: list[TileSet] = []
    done: list[Pattern] = []
    if near:
        union = reduce(or_, near)
        touched = union.layout(queries, keys, BLOCK).touched > 0
        parts += _fastest(touched, union.allowed, grid, speed)
        done.append(union)
    for term in terms:
        if term.spacing > 1:
            parts += _residues(term, _without(term, tuple(done)), grid, speed)
            done.append(term)
    return parts


def _distributed(pattern: Pattern) -> list[Pattern]:
    """Return patterns whose union is the pattern, with strided patterns separate."""
    if type(pattern) is Or:
        return [term for part in pattern.parts for term in _distributed(part)]
    if type(pattern) is And:
        choices = product(*map(_distributed, pattern.parts))
        return [reduce(and_, choice) for choice in choices]
    return [pattern]


def _without(term: Pattern, done: tuple[Pattern, ...]) -> Allowed:
    """Return the predicate of a term less what other terms allow."""

    def allowed(q: Tensor, k: Tensor) -> Tensor:
        mask = term.allowed(q, k)
        for other in done:
            mask = mask & ~other.allowed(q, k)
        return mask

    return allowed


def _fastest(touched: Tensor, allowed: Allowed, grid: Grid, speed: float) -> list[TileSet]:
    """Return the tiles of low or of tall rows, whichever are expected to be faster."""

    def cost(parts: list[TileSet]) -> float:
        tall = TALL * BLOCK
        return sum(p.pairs / (speed if p.queries.count >= tall else 1.0) for p in parts)

    cuts = (_GridCut(touched, allowed, grid, rows).parts() for rows in (1, TALL))
    return min(cuts, key=cost)


def _residues(term: Pattern, allowed: Allowed, sequence: Grid, speed: float) -> list[TileSet]:
    """Return the parts of a term that relates positions of one residue only."""
    step = term.spacing
    shift = sequence.q_offset % step
    parts: list[TileSet] = []
    sizes: dict[tuple[int, int, int], list[int]] = {}
    for residue in range(min(step, sequence.keys)):
        first = (residue - shift) % step
        if first < sequence.queries:
            rows = len(range(first, sequence.queries, step))
            columns = len(range(residue, sequence.keys, step))
            sizes.setdefault((rows, columns, first - residue), []).append(residue)
    for (rows, columns, ahead), residues in sizes.items():
        start, many = residues[0], len(residues)  # neighbours: each size is one run of residues
        if columns <= DENSE_KEYS:
            queries = Indices(start + ahead, many, 1, rows, step)
            parts += sequence.parts(queries, Indices(start, many, 1, columns, step), allowed)
            continue
        for residue in residues:
            grid = Grid(residue + ahead, residue, sequence.q_offset, step, rows, columns)
            parts += _fastest(_touched(allowed, grid), allowed, grid, speed)
    return parts


def _touched(allowed: Allowed, grid: Grid) -> Tensor:
    """Return which blocks of a grid hold an allowed pair: bool [query blocks, key blocks]."""
    k = grid.positions(torch.arange(grid.keys))
    rows = []
    for index in torch.arange(grid.queries).split(BLOCK):
        q = grid.q_offset + grid.q_start + index * grid.step
        columns = allowed(q[:, None], k[None]).expand(len(q), len(k)).any(0)
        rows.append(torch.stack([part.any() for part in columns.split(BLOCK)]))
    return torch.stack(rows)


class _GridCut:
    """Covers every allowed pair of a grid once, with tiles of `rows` blocks of queries.

    `touched`: bool [ceil(T / BLOCK), ceil(S / BLOCK)]; nothing is allowed elsewhere.
    """

    def __init__(self, touched: Tensor, allowed: Allowed, grid: Grid, rows: int) -> None:
        self.allowed, self.grid = allowed, grid
        self.per_row, self.height = rows, BLOCK * rows
        # columns of blocks that each row of tiles still has to read
        self.columns = {
            row: set(blocks.any(0).nonzero().flatten().tolist())
            for row, blocks in enumerate(touched.split(rows))
            if bool(blocks.any())
        }
        self.tiles: list[TileSet] = []

    def parts(self) -> list[TileSet]:
        """Return the parts, the largest first."""
        if self.columns:
            self._cut_wide_rows()
            self._cut_shared_columns()
            if self.grid.queries % self.height:  # a last row that is not full
                self._cut_densely(
                    [row for row in self.columns if self._rows(row).count < self.height]
                )
            self._cut_bands()
            self._cut_rest()
        return sorted(self.tiles, key=lambda part: -part.queries.tiles * part.queries.count)

    def _cut_wide_rows(self) -> None:
        """Queries that read much more than the others: each run of them is one dense product.

        They are found strip by strip, because a few global queries do not widen their block.
        """
        sizes = sorted(map(len, self.columns.values()))
        wide = max(4 * sizes[len(sizes) // 2], 8)
        for row in [row for row, columns in self.columns.items() if len(columns) >= wide]:
            strips = self._strips(row)
            for alike in (
                [i for i, columns in strips.items() if len(columns) >= wide],
                [i for i, columns in strips.items() if 0 < len(columns) < wide],
            ):
                for low, high in _runs(alike):
                    columns = set().union(*(strips[i] for i in range(low, high)))
                    end = min(high * STRIP, (row + 1) * self.height, self.grid.queries)
                    self._emit_hulls(low * STRIP, end, columns)
            del self.columns[row]

    def _strips(self, row: int) -> dict[int, set[int]]:
        rows = self._rows(row)
        strips = {}
        for low in range(rows.start, rows.start + rows.count, STRIP):
            queries = _span(low, min(low + STRIP, rows.start + rows.count))
            strips[low // STRIP] = {
                c for c in sorted(self.columns[row]) if bool(self._visible(queries, c).any())
            }
        return strips

    def _cut_shared_columns(self) -> None:
        """Keys that most queries read: one list of keys for all rows."""
        if len(self.columns) < FEW_ROWS:
            return
        shared = self._columns_of_most_rows()
        runs = _runs(sorted(self.columns))
        keys: list[int] = []
        rest = {row: columns - set(shared) for row, columns in self.columns.items()}
        for column in shared:
            visible = {row: self._visible(self._rows(row), column) for row in self.columns}
            readers = [mask for row, mask in visible.items() if column in self.columns[row]]
            share = torch.cat(readers[len(readers) // 2 :]).double().mean(0)
            common = share >= share.max() / 2
            keys += (column * BLOCK + common.nonzero().flatten()).tolist()
            for row, mask in visible.items():
                if bool(mask[:, ~common].any()):
                    rest[row].add(column)
        if not keys:
            return
        for first, last in runs:
            self._emit_rows(first, last, _regular(keys))
        self.columns = {row: columns for row, columns in rest.items() if columns}
        allowed, positions = self.allowed, self.grid.positions(torch.tensor(keys))
        self.allowed = lambda q, k: allowed(q, k) & ~torch.isin(k, positions)

    def _columns_of_most_rows(self) -> list[int]:
        firsts: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for place, row in enumerate(sorted(self.columns)):
            counts.update(self.columns[row])
            for column in self.columns[row]:
                firsts.setdefault(column, place)
        rows = len(self.columns)
        steady = [
            column
            for column, count in counts.items()
            if count >= FEW_ROWS and 4 * count >= 3 * (rows - firsts[column])
        ]
        many = [column for column in steady if 4 * counts[column] >= rows]
        # the last columns of a window look steady too, but few rows read them
        return sorted(steady if 2 * len(many) >= len(steady) else many)

    def _emit_rows(self, first: int, last: int, keys: list[Indices] | Gathered) -> None:
        low, high = first * self.height, min(last * self.height, self.grid.queries)
        if isinstance(keys, Gathered):
            self._emit(_span(low, high), keys)
            return
        tiles, rest = divmod(high - low, ROWS)
        for run in keys:
            if tiles:
                same = Indices(run.start, tiles, 0, run.count, run.step)
                self._emit(Indices(low, tiles, ROWS, ROWS), same)
            if rest:
                self._emit(_span(high - rest, high), run)

    def _cut_bands(self) -> None:
        """Offsets of key blocks that most rows read, at the same distance from themselves."""
        if len(self.columns) < FEW_ROWS:
            return
        counts = Counter(
            column - row * self.per_row
            for row, columns in self.columns.items()
            for column in columns
        )
        common = sorted(o for o, n in counts.items() if 2 * n >= len(self.columns))
        for low, high in _runs(common):
            bands = {
                row: set(range(row * self.per_row + low, row * self.per_row + high))
                for row in self.columns
            }
            full = [
                row
                for row, band in bands.items()
                if band <= self.columns[row] and (max(band) + 1) * BLOCK <= self.grid.keys
            ]
            for first, last in _runs(full):
                if last - first < 2:
                    continue
                start = (first * self.per_row + low) * BLOCK
                keys = Indices(start, last - first, self.height, (high - low) * BLOCK)
                self._emit(self._tall(first, last), keys)
                for row in range(first, last):
                    self.columns[row] -= bands[row]
            self.columns = {row: columns for row, columns in self.columns.items() if columns}

    def _cut_rest(self) -> None:
        """The remaining pairs: neighbours read neighbours densely, others are gathered."""
        for first, last in _runs(sorted(self.columns)):
            rows = list(range(first, last))
            union = set().union(*(self.columns[row] for row in rows))
            listed = sum(len(self.columns[row]) for row in rows)
            dense = len(_runs(sorted(union))) <= APART and len(union) * len(rows) <= 2 * listed
            if dense or self.grid.step > 1 or self.grid.keys < BLOCK:
                self._cut_densely(rows)
        for first, last in _runs(sorted(self.columns)):
            self._emit_gathered(first, last)

    def _emit_gathered(self, first: int, last: int) -> None:
        """Emit rows first to last - 1 on blocks of each; short lists are filled up and masked."""
        lists = [sorted(self.columns[row]) for row in range(first, last)]
        most = max(map(len, lists))
        columns = torch.tensor([[*row, *row[:1] * (most - len(row))] for row in lists])
        filled = torch.arange(most) >= torch.tensor([[len(row)] for row in lists])
        starts = (columns * BLOCK).clamp(max=self.grid.keys - BLOCK)
        index = starts[..., None] + torch.arange(BLOCK)
        remaining = (index >= columns[..., None] * BLOCK) & ~filled[..., None]
        keys = Gathered(starts, BLOCK)
        self._emit(self._tall(first, last), keys, remaining.flatten(1)[:, None])

    def _cut_densely(self, rows: list[int]) -> None:
        """Each run of rows on all the keys that one of them reads."""
        for first, last in _runs(sorted(rows)):
            remaining = torch.zeros(last - first, -(-self.grid.keys // BLOCK), dtype=torch.bool)
            for row in range(first, last):
                remaining[row - first, list(self.columns[row])] = True
            remaining = remaining.repeat_interleave(self.height, 0).repeat_interleave(BLOCK, 1)
            low, high = first * self.height, min(last * self.height, self.grid.queries)
            columns = set().union(*(self.columns.pop(row) for row in range(first, last)))
            self._emit_hulls(low, high, columns, remaining[: high - low])

    def _emit_hulls(
        self, low: int, high: int, columns: set[int], remaining: Tensor | None = None
    ) -> None:
        """Emit queries low to high - 1 on each run of these block columns.

        `remaining`: bool [high - low, columns * BLOCK], False = a pair of another part.
        """
        runs = _runs(sorted(columns))
        if len(runs) > APART:
            runs = [(runs[0][0], runs[-1][1])]
        for column, end in runs:
            begin, stop = column * BLOCK, min(end * BLOCK, self.grid.keys)
            mask = None if remaining is None else remaining[None, :, begin:stop]
            self._emit(_span(low, high), _span(begin, stop), mask)

    def _emit(
        self, queries: Indices, keys: Indices | Gathered, remaining: Tensor | None = None
    ) -> None:
        self.tiles += self.grid.parts(queries, keys, self.allowed, remaining)

    def _rows(self, row: int) -> Indices:
        return _span(row * self.height, min((row + 1) * self.height, self.grid.queries))

    def _tall(self, first: int, last: int) -> Indices:
        return Indices(first * self.height, last - first, self.height, self.height)

    def _visible(self, queries: Indices, column: int) -> Tensor:
        """Return which keys of a block column the queries may see: bool [r, keys]."""
        keys = _span(column * BLOCK, min((column + 1) * BLOCK, self.grid.keys))
        return self.grid.allowed(queries, keys, self.allowed)[0]


def _span(first: int, last: int) -> Indices:
    return Indices(first, 1, 0, last - first)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs of neighbours: (first, last + 1)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def _regular(numbers: list[int]) -> list[Indices] | Gathered:
    """Return ascending numbers as few runs, or as a list to gather."""
    runs = _runs(numbers)
    sizes = {high - low for low, high in runs}
    gaps = {b - a for (a, _), (b, _) in pairwise(runs)}
    if sizes == {1} and len(gaps) == 1:
        return [Indices(runs[0][0], 1, 0, len(runs), gaps.pop())]
    if len(runs) <= APART:
        return [_span(low, high) for low, high in runs]
    size = sizes.pop() if len(sizes) == 1 else 1
    starts = [n for low, high in runs for n in range(low, high, size)]
    return Gathered(torch.tensor([starts]), size)
