"""The protocol of attention patterns: which keys a query may attend to, as sets and as bounds.

`allowed` is the predicate, `band` the same as a band of distances where the pattern is one,
`layout` lists the blocks that a sparse op computes, and `pairs` counts the visible pairs. Only
`allowed` has to be written; the rest follows from it, and a pattern that also overrides `bounds`
is laid out and counted without looking at every pair.

Positions are integers. Queries stand at the last positions of the keys (bottom-right alignment):
one new token after 8 cached ones stands at position 8.

Letters: H heads, T queries, S keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib import import_module
from operator import or_
from typing import NamedTuple

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.utils.records import Axis, derived

PAIRS_AT_ONCE = 1 << 20
COUNTING_BLOCK = 64  # positions
FIRST_GRID = 16  # rectangles along a side that counting starts with
SOME, EVERY = 1, 2


@dataclass(frozen=True)
class Layout:
    """The key blocks that each query block touches."""

    block: int  # side of a block in positions
    touched: Tensor  # int8 [query blocks, key blocks]; 0: no pair for any head, 1: some, 2: all


def layout_of(pattern: Pattern, queries: int, keys: int, block: int) -> Layout:
    """Return the exact layout for `queries` aligned with the last of `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, block)
        touched = grid.bounds()
        blocks = (touched == SOME).nonzero()
        for examined in grid.examine(blocks[~grid.mixed(blocks)]):
            kinds = examined.some.to(torch.int8) + examined.every
            touched[examined.rows, examined.columns] = kinds
        return Layout(block, touched)


def count_pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """Count the pairs some head sees, for `queries` aligned with the last of `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, COUNTING_BLOCK)
        full, undecided = grid.settle()
        top, bottom = (full[:, :2] * COUNTING_BLOCK).clamp(max=queries).unbind(1)
        left, right = (full[:, 2:] * COUNTING_BLOCK).clamp(max=keys).unbind(1)
        certain = int(((bottom - top) * (right - left)).sum())
        return certain + sum(examined.pairs for examined in grid.examine(undecided))


def count_blocks(pattern: Pattern, queries: int, keys: int, block: int) -> int:
    """Count the blocks a pattern touches, for `queries` aligned with the last of `keys`."""
    with torch.inference_mode(False), torch.device("cpu"):
        grid = _Grid(pattern, queries, keys, block)
        full, undecided = grid.settle()
        top, bottom, left, right = full.unbind(1)
        mixed = grid.mixed(undecided)
        certain = int(((bottom - top) * (right - left)).sum()) + int(mixed.sum())
        touched = (int(examined.some.sum()) for examined in grid.examine(undecided[~mixed]))
        return certain + sum(touched)


class _BlockPairs(NamedTuple):
    """The rows and columns of n blocks, and which of their pairs are allowed."""

    rows: Tensor
    columns: Tensor
    some: Tensor  # bool [n], some pair is allowed for some head
    every: Tensor  # bool [n], every pair is allowed for every head
    pairs: int  # allowed for some head, in all blocks together


class _Grid:
    """The matrix for `queries` aligned with the last of `keys`, cut into blocks."""

    def __init__(self, pattern: Pattern, queries: int, keys: int, block: int) -> None:
        self.pattern, self.queries, self.keys, self.block = pattern, queries, keys, block
        self.q_starts = torch.arange(0, queries, block)
        self.k_starts = torch.arange(0, keys, block)
        self.heights = (queries - self.q_starts).clamp(max=block)  # the last may be ragged
        self.widths = (keys - self.k_starts).clamp(max=block)
        self.height, self.width = min(block, queries), min(block, keys)

    def bounds(self) -> Tensor:
        """Return the pattern's bounds of each block: int8 [query blocks, key blocks]."""
        q = self.q_starts[:, None] + (self.keys - self.queries)
        k = self.k_starts[None]
        known = self.pattern.bounds(q, q + self.heights[:, None] - 1, k, k + self.widths - 1)
        return known.to(torch.int8).expand(len(q), k.shape[1]).clone()

    def settle(self) -> tuple[Tensor, Tensor]:
        """Halve rectangles of blocks until the pattern's bounds decide them.

        Returns [n, 4], first and end of rows and columns of allowed rectangles, and [m, 2], the
        undecided blocks.
        """
        ends = torch.tensor([len(self.q_starts), len(self.k_starts)])
        side = max(1, (1 << (int(ends.max()) - 1).bit_length()) // FIRST_GRID)
        starts = torch.cartesian_prod(*(torch.arange(0, int(end), side) for end in ends))
        quarters = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        full = []
        while True:
            stops = torch.minimum(starts + side, ends)
            known = self._bounds(starts, stops)
            full.append(torch.stack([starts, stops], dim=2)[known == EVERY].flatten(1))
            starts = starts[known == SOME]
            if side == 1:
                return torch.cat(full), starts
            side //= 2
            starts = (starts[:, None] + side * quarters).flatten(0, 1)
            starts = starts[(starts < ends).all(dim=1)]

    def _bounds(self, starts: Tensor, stops: Tensor) -> Tensor:
        """Return the pattern's bounds of rectangles of blocks, [n, 2] each: int8 [n]."""
        ends = torch.tensor([self.queries, self.keys])
        shift = torch.tensor([self.keys - self.queries, 0])
        first = starts * self.block + shift
        last = torch.minimum(stops * self.block, ends) - 1 + shift
        corners = (first[:, 0], last[:, 0], first[:, 1], last[:, 1])
        known = self.pattern.bounds(*(corner[:, None, None, None] for corner in corners))
        return known.expand(len(starts), 1, 1, 1).flatten()

    def mixed(self, blocks: Tensor) -> Tensor:
        """Return whether the first row and column of blocks [n, 2] hold both kinds of pairs.

        The two contain every distance of a block, and most patterns speak of distances.
        """
        is_mixed = torch.zeros(len(blocks), dtype=torch.bool)
        for number in _pieces(len(blocks), self.height + self.width):
            queries, keys = (part[:, None] for part in self._starts(blocks[number]))
            row = self._allowed(queries, keys + torch.arange(self.width)).flatten(1)
            column = self._allowed(queries + torch.arange(self.height), keys).flatten(1)
            edge = torch.cat([row, column], dim=1)
            is_mixed[number] = edge.any(dim=1) & ~edge.all(dim=1)
        return is_mixed

    def examine(self, blocks: Tensor) -> Iterator[_BlockPairs]:
        """Classify every pair of blocks [n, 2]."""
        for number in _pieces(len(blocks), self.height * self.width):
            yield self._examine(blocks[number])

    def _examine(self, blocks: Tensor) -> _BlockPairs:
        some = torch.zeros(len(blocks), dtype=torch.bool)
        every, pairs = ~some, 0
        first, keys = (part[:, None] for part in self._starts(blocks))
        keys = keys + torch.arange(self.width)
        for part in _pieces(self.height, self.width):
            queries = first + part
            allowed = self._allowed(queries, keys)
            some |= allowed.flatten(1).any(dim=1)
            every &= allowed.flatten(1).all(dim=1)
            real = (queries < self.queries)[..., None] & (keys < self.keys)[:, None]
            pairs += int((allowed.any(dim=1) & real).sum())
        rows, columns = blocks.unbind(1)
        return _BlockPairs(rows, columns, some, every, pairs)

    def _starts(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_starts[blocks[:, 0]], self.k_starts[blocks[:, 1]]

    def _allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the allowed pairs, [n, H or 1, r, c]; an index past the end means the last one."""
        q = queries.clamp(max=self.queries - 1) + (self.keys - self.queries)
        k = keys.clamp(max=self.keys - 1)
        allowed = self.pattern.allowed(q[:, None, :, None], k[:, None, None, :])
        return allowed.expand(len(q), allowed.shape[1], q.shape[1], k.shape[1])


def _pieces(number: int, pairs: int) -> tuple[Tensor, ...]:
    """Split 0..number - 1 into pieces of at most `PAIRS_AT_ONCE` pairs, `pairs` for each number."""
    return torch.arange(number).split(max(1, PAIRS_AT_ONCE // pairs)) if number else ()


def pairs_of(pattern: Pattern, queries: int, keys: int) -> int:
    """Count the pairs some head sees, for `queries` aligned with the last of `keys`.

    What lies only at multiples of a spacing is counted residue by residue; of a union, each such
    term adds what the terms before it do not allow.
    """
    if pattern.spacing > 1:
        return sum(
            times * part.pairs(of_queries, of_keys)
            for (part, of_queries, of_keys), times in residues(pattern, queries, keys).items()
        )
    terms = pattern.terms()
    spaced = [term for term in terms if term.spacing > 1]
    if not spaced or pattern.heads is not None:
        return count_pairs(pattern, queries, keys)
    near = [term for term in terms if term.spacing == 1]
    done = [reduce(or_, near)] if near else []
    total = sum(part.pairs(queries, keys) for part in done)
    for term in spaced:
        total += term.pairs(queries, keys)
        if done:
            total -= (term & reduce(or_, done)).pairs(queries, keys)
        done.append(term)
    return total


def residues(pattern: Pattern, queries: int, keys: int) -> Counter[tuple[Pattern, int, int]]:
    """Return (pattern, queries, keys) of each residue of the pattern's spacing, with how often.

    The positions of one residue are counted in steps of the spacing; the queries still stand last
    among the keys. A residue without a query or without a key is left out.
    """
    step = pattern.spacing
    counts: Counter[tuple[Pattern, int, int]] = Counter()
    for first in range(min(step, keys)):
        last = (keys - 1 - first) // step
        of_queries = last - (keys - queries - 1 - first) // step
        if of_queries > 0:
            counts[pattern.every(step, first), of_queries, last + 1] += 1
    return counts


class Band(NamedTuple):
    """A query at position i may see the keys j with i - before <= j <= i + after, and sinks.

    Args:
        before: keys before the query's own; None takes all of them.
        after: keys after it; None takes all of them.
        sinks: the first keys of the text, j < sinks, are seen from everywhere that `after` allows.
    """

    before: int | None
    after: int | None
    sinks: int = 0

    def __and__(self, other: Band) -> Band | None:
        """Return the pairs that both allow; None if they are not a band."""
        wider = self.before is None or (other.before is not None and self.before > other.before)
        narrow, wide = (other, self) if wider else (self, other)
        ends = [n for n in (self.after, other.after) if n is not None]
        after = min(ends) if ends else None  # without default=, which no graph can hold
        if wide.before is None or narrow.sinks <= wide.sinks:
            return Band(narrow.before, after, narrow.sinks)
        return Band(narrow.before, after, wide.sinks) if narrow.before == wide.before else None

    def __or__(self, other: Band) -> Band:
        """Return the pairs that one of them allows."""
        ends = [(self.before, other.before), (self.after, other.after)]
        before, after = (None if None in pair else max(pair) for pair in ends)  # type: ignore[type-var]
        return Band(before, after, 0 if before is None else max(self.sinks, other.sinks))


ALL, PAST = Band(None, None), Band(None, 0)

CACHED_BLOCKS = 1 << 20  # layouts up to 1 MiB are cached between calls


class Pattern(Axis, ABC, family="pattern"):
    """Base of all patterns; values combine with `&` and `|`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Parity(Pattern):
        ...     def allowed(self, q_positions, k_positions):
        ...         return (q_positions + k_positions) % 2 == 0
        >>> Parity().mask(2, 3).int().tolist(), Parity().pairs(300, 300)
        ([[0, 1, 0], [1, 0, 1]], 45000)
        >>> del Pattern.table["Parity"]
    """

    causal: bool = False
    """True if no query ever sees a key after itself."""

    dense: bool = False
    """True if ops compute the whole query-key matrix: skipping blocks would save little."""

    crosses: bool = False
    """True if the pattern means something between two sequences, as cross-attention has them."""

    max_length: int | None = None
    """The longest sequence it can serve, in tokens; None if unlimited."""

    heads: int | None = None
    """The number of heads it is made for; None: any, and all alike."""

    spacing: int = 1
    """Allowed pairs lie only at distances that are multiples of it."""

    relative: bool = False
    """True if only the distance between query and key matters, not where they stand."""

    reach: int | None = None
    """Positions from a query back to the furthest visible key, both included; None if unlimited."""

    @abstractmethod
    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the query position may see the key position; the shapes broadcast.

        Positions come as [..., T, 1] and [..., 1, S]. A pattern whose heads differ returns its
        heads on the third axis from the right, where the positions have 1.
        """

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles of query-key pairs from their corners alone.

        Args:
            q_first: position of the first query; all four broadcast.
            q_last: last query, included.
            k_first: first key.
            k_last: last key, included.

        Returns:
            int8: 0 if no pair is allowed (for any head), 2 if every pair is (for every head),
            1 if that is not known. 1 is never wrong; a single pair is looked up.
        """
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        unknown = torch.ones(shape, dtype=torch.int8, device=q_first.device)
        if self.heads is not None:
            return unknown
        single = (q_first == q_last) & (k_first == k_last)
        return torch.where(single, 2 * self.allowed(q_first, k_first).to(torch.int8), unknown)

    def _repr_svg_(self) -> str:
        """Draw twice the reach of the pattern in a notebook, 32 positions at least."""
        view, picture = (import_module(f"suffice.view.{name}") for name in ("drawing", "picture"))
        longest = min(self.max_length or view.MAX_POSITIONS, view.MAX_POSITIONS)
        return picture.svg(view.draw(self, min(max(32, 2 * (self.reach or 0)), longest)))

    def refuses_source(self) -> str | None:
        """Return why keys cannot come from another sequence; None if `crosses`."""
        return None if self.crosses else "relates queries and keys of one sequence: use Full()"

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the pattern of each head.

        Raises:
            ConfigError: for another number of heads than the pattern is made for.
        """
        if self.heads is None:
            return (self,) * num_heads
        if self.heads != num_heads:
            raise ConfigError(
                f"{self!r} is made for {self.heads} heads, not for {num_heads}; use equal numbers."
            )
        return tuple(_HeadOf(self, head) for head in range(num_heads))

    def band(self) -> Band | None:
        """Return the pattern as a band of distances with sinks; None if it is none.

        Example:
            >>> from suffice.patterns import Causal, Global, Window
            >>> ((Window(8) | Global(2)) & Causal()).band()
            Band(before=7, after=0, sinks=2)
        """
        return None

    def band_of_past(self) -> Band | None:
        """Return `(self & Causal()).band()`, or a band of sinks alone, whose `before` is -1."""
        band = self.band()
        return None if band is None else band & PAST

    def terms(self) -> tuple[Pattern, ...]:
        """Return patterns whose union this is, with every `|` taken out of the `&`."""
        return (self,)

    def every(self, step: int, first: int) -> Pattern:
        """Return what the pattern is among the positions first, first + step, ...

        Args:
            step: distance of those positions, which count 0, 1, ... in the pattern returned.
            first: the one that counts 0.
        """
        return _Every(self, step, first)

    def __and__(self, other: Pattern) -> Pattern:
        return self.table["And"]((self, other))

    def __or__(self, other: Pattern) -> Pattern:
        return self.table["Or"]((self, other))

    def mask(self, queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return the dense mask for `queries` aligned with the last of `keys`: bool [T, S].

        [H, T, S] where the heads differ.
        """
        q = torch.arange(keys - queries, keys, device=device)
        k = torch.arange(keys, device=device)
        allowed = self.allowed(q[:, None], k[None, :])
        return allowed.expand(*allowed.shape[:-2], queries, keys)

    def layout(self, queries: int, keys: int, block: int = 64) -> Layout:
        """Return the blocks touched by `queries` aligned with the last of `keys`.

        It is computed once for equal patterns; do not write into it.
        """
        large = -(-queries // block) * -(-keys // block) > CACHED_BLOCKS
        if large or torch.compiler.is_compiling():
            return layout_of(self, queries, keys, block)
        return _cached_layout(self, queries, keys, block)

    def pairs(self, queries: int, keys: int) -> int:
        """Count the visible query-key pairs for `queries` aligned with the last of `keys`.

        Where heads differ, the pairs that some head sees; `of_heads` has the pattern of each.
        """
        return pairs_of(self, queries, keys)


@lru_cache(maxsize=64)
def _cached_layout(pattern: Pattern, queries: int, keys: int, block: int) -> Layout:
    return layout_of(pattern, queries, keys, block)


@dataclass(frozen=True)
class _HeadOf(Pattern):
    """One head of a pattern whose heads differ."""

    pattern: Pattern
    head: int

    causal = derived(lambda self: self.pattern.causal)
    dense = derived(lambda self: self.pattern.dense)
    crosses = derived(lambda self: self.pattern.crosses)
    max_length = derived(lambda self: self.pattern.max_length)
    spacing = derived(lambda self: self.pattern.spacing)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        allowed = self.pattern.allowed(q_positions, k_positions)
        if max(q_positions.dim(), k_positions.dim()) < allowed.dim():
            return allowed.select(-3, self.head)
        return allowed.narrow(-3, self.head, 1)


@dataclass(frozen=True)
class _Every(Pattern):
    """A pattern among every step-th position."""

    pattern: Pattern
    step: int
    first: int

    causal = derived(lambda self: self.pattern.causal)
    heads = derived(lambda self: self.pattern.heads)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return self.pattern.allowed(*self._original(q_positions, k_positions))

    def bounds(self, *corners: Tensor) -> Tensor:
        return self.pattern.bounds(*self._original(*corners))

    def _original(self, *positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.first + self.step * position for position in positions)


def classify(*, none: Tensor, every: Tensor) -> Tensor:
    """Return int8: 0 where certainly no pair is allowed, 2 where every pair is, 1 elsewhere."""
    return (~none).to(torch.int8) + every.to(torch.int8)
