"""Patterns of image grids: positions are cells in row-major order, as the patches of a ViT.

What stands before the grid, such as a class token, is at positions below `first`. No pair of a grid
pattern holds it; `| Global(1)` lets it see and be seen by all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.utils.records import derived, is_whole


class _Grid(Pattern):
    """Base of patterns over rows x columns cells: a pair is allowed if both of its axes are."""

    rows: int
    columns: int
    size: int
    first: int

    max_length = derived(lambda self: self.first + self.rows * self.columns)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("rows", 1), ("columns", 1), ("size", 1), ("first", 0)):
            if not is_whole(getattr(self, name), least=least):
                raise ConfigError(f"{self!r}: give {name} as a whole number of at least {least}.")

    @abstractmethod
    def interval(self, line: Tensor, lines: int) -> tuple[Tensor, Tensor]:
        """Return the first and last of `lines` that a line of queries sees; both grow with it."""

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key's row and column are seen from the query's."""
        q, k = q_positions - self.first, k_positions - self.first
        seen = (q >= 0) & (k >= 0)
        for lines, of_query, of_key in (
            (self.rows, q // self.columns, k // self.columns),
            (self.columns, q % self.columns, k % self.columns),
        ):
            least, most = self.interval(of_query, lines)
            seen = seen & (of_key >= least) & (of_key <= most)
        return seen

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: rows that lie too far apart decide."""
        corners = (q_first, q_last, k_first, k_last)
        known = super().bounds(*corners)
        q_top, q_bottom, k_top, k_bottom = ((x - self.first) // self.columns for x in corners)
        above = k_bottom < self.interval(q_top.clamp(min=0), self.rows)[0]
        below = k_top > self.interval(q_bottom.clamp(min=0), self.rows)[1]
        outside = (k_bottom < 0) | (q_bottom < 0)
        return torch.where(above | below | outside, torch.zeros_like(known), known)


@dataclass(frozen=True)
class Neighbourhood(_Grid):
    """A query sees the size x size cells nearest to it; at an edge the square moves inwards.

    Every query sees the same number of keys. Depth widens what is seen, as with a `Window` on a
    line.

    Args:
        rows: rows of the grid.
        columns: columns of the grid; the cell in row r and column c stands at first + r * columns +
            c.
        size: cells on a side, at most the smaller side of the grid.
        first: positions before the grid.

    Raises:
        ConfigError: for sizes that are not whole numbers of at least 1, or a square that is larger
            than the grid.

    Cost: T * size^2 visible pairs.
    Example:
        >>> Neighbourhood(1, 5, 1).mask(5, 5).int().diagonal().tolist()
        [1, 1, 1, 1, 1]
        >>> Neighbourhood(3, 3, 2).mask(9, 9)[0].view(3, 3).int().tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 0]]

    Source: Hassani et al. 2023, arXiv:2204.07143, section 3.1. No difference; an even size has one
        more cell before the query than after it.
    """

    rows: int
    columns: int
    size: int
    first: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > min(self.rows, self.columns):
            raise ConfigError(
                f"{self!r}: a square of {self.size} x {self.size} does not fit; give a size of at "
                f"most {min(self.rows, self.columns)}."
            )

    def interval(self, line: Tensor, lines: int) -> tuple[Tensor, Tensor]:
        """Return the lines around one, moved inwards at the edges."""
        least = (line - self.size // 2).clamp(min=0, max=lines - self.size)
        return least, least + self.size - 1

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return squares of two, without and behind a class token."""
        return (cls(12, 3, 2), cls(9, 4, 2, first=1))


@dataclass(frozen=True)
class ShiftedWindows(_Grid):
    """The grid is cut into windows of size x size; a query sees the keys of its window.

    The cuts lie `shift` cells further in one layer than in the next, so that what is apart in one
    meets in the other. At the edges a shifted window is smaller.

    Args:
        rows: rows of the grid.
        columns: columns of the grid; the cell in row r and column c stands at first + r * columns +
            c.
        size: cells on a side of a window.
        shift: rows and columns by which the cuts are moved, 0 to size - 1.
        first: positions before the grid.

    Raises:
        ConfigError: for sizes that are not whole numbers of at least 1, or a shift outside.

    Cost: T * size^2 visible pairs, fewer at the edges of shifted windows.
    Example:
        >>> ShiftedWindows(1, 6, 4).mask(6, 6)[0].int().tolist()
        [1, 1, 1, 1, 0, 0]
        >>> ShiftedWindows(1, 6, 4, shift=2).mask(6, 6)[0].int().tolist()
        [1, 1, 0, 0, 0, 0]

    Source: Liu et al. 2021, arXiv:2103.14030, section 3.2. The paper turns the image cyclically and
        masks what did not touch before, which sees the same pairs. Differs: grids that the size
        does not divide have smaller windows at the end, the paper pads them.
    """

    rows: int
    columns: int
    size: int
    shift: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.shift, least=0) or self.shift >= self.size:
            raise ConfigError(f"{self!r}: give a shift from 0 to {self.size - 1}.")

    def interval(self, line: Tensor, lines: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the lines of a window."""
        least = (line - self.shift) // self.size * self.size + self.shift
        return least, least + self.size - 1

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return windows of two, cut at the edge and shifted behind a class token."""
        return (cls(9, 4, 2), cls(12, 3, 2, shift=1, first=1))
