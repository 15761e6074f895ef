"""A pattern compiled once to the tiles that compute it.

The block layout of the pattern says where something is allowed. What lies only at distances that
are multiples of a stride would touch every block; in the order of residues it is dense, so such
terms are cut residue by residue.

Letters: T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from itertools import product
from operator import and_, or_
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.ops.sparse.tiles import Grid, Part, Run, tiles_of
from suffice.patterns import And, Or, Pattern

BLOCK = 64  # positions; the finest tile
TALL = 3  # blocks of queries of a tall tile; the kernel works on 64 queries at a time from 192 on
# speed of tall tiles, relative; judged by benchmarks/mechanisms.py --case sparse
FORWARD, BACKWARD = 1.35, 1.75
DENSE_KEYS = 1024  # keys of one residue; below, nothing is cut out of it


class Cut(NamedTuple):
    """What computes a pattern.

    Args:
        parts: every allowed pair lies in exactly one of their tiles.
        fresh: for each part, True if no earlier part has its queries.
        whole: True if every query is in some part.
    """

    parts: tuple[Part, ...]
    fresh: tuple[bool, ...]
    whole: bool

    @property
    def pairs(self) -> int:
        """The pairs that are computed."""
        return sum(part.pairs for part in self.parts)


@lru_cache(maxsize=64)
def cut(pattern: Pattern, queries: int, keys: int, speed: float = FORWARD) -> Cut:
    """Return the tiles of a pattern whose heads are alike, the queries last among the keys.

    Args:
        pattern: what is allowed.
        queries: T.
        keys: S.
        speed: of tall tiles, FORWARD or BACKWARD.
    """
    with torch.inference_mode(False), torch.device("cpu"):
        parts = _parts(pattern, queries, keys, speed)
        covered = torch.zeros(queries, dtype=torch.bool)
        fresh = []
        for part in parts:
            index = part.queries.index().flatten()
            fresh.append(not bool(covered[index].any()))
            covered[index] = True
        return Cut(tuple(parts), tuple(fresh), bool(covered.all()))


def _parts(pattern: Pattern, queries: int, keys: int, speed: float) -> list[Part]:
    terms = _terms(pattern)
    near = [term for term in terms if term.spacing == 1]
    grid = Grid(0, 0, keys - queries, 1, queries, keys)
    parts: list[Part] = []
    done: list[Pattern] = []
    if near:
        rest = reduce(or_, near)
        touched = rest.layout(queries, keys, BLOCK).touched > 0
        parts += _fastest(touched, rest.allowed, grid, speed)
        done.append(rest)
    for term in terms:
        if term.spacing > 1:
            parts += _residues(term, _without(term, tuple(done)), grid, speed)
            done.append(term)
    return parts


def _terms(pattern: Pattern) -> list[Pattern]:
    """Return patterns whose union is the pattern, so that spaced ones stand alone."""
    terms = _distributed(pattern)
    return terms if any(term.spacing > 1 for term in terms) else [pattern]


def _distributed(pattern: Pattern) -> list[Pattern]:
    if isinstance(pattern, Or):
        return [term for part in pattern.parts for term in _distributed(part)]
    if isinstance(pattern, And):
        choices = product(*map(_distributed, pattern.parts))
        return [reduce(and_, choice) for choice in choices]
    return [pattern]


def _without(term: Pattern, done: tuple[Pattern, ...]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the predicate of a term less what other terms allow."""

    def allowed(q: Tensor, k: Tensor) -> Tensor:
        left = term.allowed(q, k)
        for other in done:
            left = left & ~other.allowed(q, k)
        return left

    return allowed


def _fastest(
    touched: Tensor, allowed: Callable[[Tensor, Tensor], Tensor], grid: Grid, speed: float
) -> list[Part]:
    """Return the tiles of low or of tall rows, whichever are expected to be faster."""

    def cost(parts: list[Part]) -> float:
        tall = TALL * BLOCK
        return sum(p.pairs / (speed if p.queries.count >= tall else 1.0) for p in parts)

    return min((tiles_of(touched, allowed, grid, BLOCK, rows) for rows in (1, TALL)), key=cost)


def _residues(
    term: Pattern,
    allowed: Callable[[Tensor, Tensor], Tensor],
    whole: Grid,
    speed: float,
) -> list[Part]:
    """Return the parts of a term that relates positions of one residue only."""
    step = term.spacing
    shift = whole.q_offset % step
    parts: list[Part] = []
    sizes: dict[tuple[int, int, int], list[int]] = {}
    for residue in range(min(step, whole.keys)):
        first = (residue - shift) % step
        if first < whole.queries:
            count = len(range(first, whole.queries, step)), len(range(residue, whole.keys, step))
            sizes.setdefault((*count, first - residue), []).append(residue)
    for (rows, columns, ahead), residues in sizes.items():
        start, many = residues[0], len(residues)  # neighbours: each size is one run of residues
        if columns <= DENSE_KEYS:
            queries = Run(start + ahead, many, 1, rows, step)
            parts += whole.parts(queries, Run(start, many, 1, columns, step), allowed)
            continue
        for residue in residues:
            grid = Grid(residue + ahead, residue, whole.q_offset, step, rows, columns)
            touched = _touched(allowed, grid)
            parts += _fastest(touched, allowed, grid, speed)
    return parts


def _touched(allowed: Callable[[Tensor, Tensor], Tensor], grid: Grid) -> Tensor:
    """Return which blocks of a grid hold an allowed pair: bool [query blocks, key blocks]."""
    k = grid.k_start + torch.arange(grid.keys) * grid.step
    rows = []
    for index in torch.arange(grid.queries).split(BLOCK):
        q = grid.q_offset + grid.q_start + index * grid.step
        seen = allowed(q[:, None], k[None]).expand(len(q), len(k)).any(0)
        rows.append(torch.stack([part.any() for part in seen.split(BLOCK)]))
    return torch.stack(rows)
