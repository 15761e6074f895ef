"""What a drawing of a pattern shows, before it is a picture or text.

Letters: H heads, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.cost import BLOCK, computed_pairs
from suffice.errors import ConfigError
from suffice.patterns import Pattern
from suffice.view.expression import expression
from suffice.view.parts import Part, layers

LONGEST = 2048  # positions; beyond, a cell of a picture would be smaller than its dots


@dataclass(frozen=True, eq=False)
class Panel:
    """The heads that see the same pairs.

    Args:
        heads: their numbers, from 1; every head of a pattern whose heads are alike.
        cells: int64 [T, S], 0 = hidden, n = allowed by part n of the drawing, from 1.
        computed: pairs that an op computes, with those it masks afterwards.
    """

    heads: tuple[int, ...]
    cells: Tensor
    computed: int

    @property
    def visible(self) -> int:
        """How many pairs these heads see."""
        return int((self.cells > 0).sum())

    @property
    def share(self) -> float:
        """Which part of all pairs they see."""
        return self.visible / self.cells.numel()

    @property
    def counts(self) -> str:
        """The counts in words."""
        computed = f"{self.computed:,} computed in blocks of {BLOCK}"
        return (
            f"{self.visible:,} of {self.cells.numel():,} pairs visible ({self.share:.1%}), "
            f"{computed if self.computed else 'none computed'}"
        )

    def named(self, room: int) -> str:
        """Return the heads in words, in at most `room` characters where that is possible.

        Example:
            >>> panel = Panel((1, 3, 4, 5), torch.zeros(1, 1), 0)
            >>> panel.named(80), panel.named(10)
            ('heads 1, 3-5', 'head 1 +3')
        """
        runs: list[list[int]] = []
        for head in self.heads:
            if runs and runs[-1][-1] == head - 1:
                runs[-1].append(head)
            else:
                runs.append([head])
        told = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        named = f"head{'s' * (len(self.heads) > 1)} {told}"
        return named if len(named) <= room else f"head {self.heads[0]} +{len(self.heads) - 1}"


@dataclass(frozen=True, eq=False)
class Drawing:
    """Who sees whom: queries down, keys across, a panel for each sort of head.

    Args:
        expression: the pattern as code.
        parts: what the numbers in the panels' cells stand for, from 1.
        panels: one if all heads are alike.
    """

    expression: str
    parts: tuple[Part, ...]
    panels: tuple[Panel, ...]

    @property
    def legend(self) -> tuple[tuple[int, str], ...]:
        """Each part's number and name, with how many pairs carry its colour."""
        drawn = [
            sum(int((panel.cells == number).sum()) for panel in self.panels)
            for number in range(1, len(self.parts) + 1)
        ]
        return tuple(
            (number, f"{part.name}: {pairs:,} pair{'s' * (pairs != 1)}")
            for number, (part, pairs) in enumerate(zip(self.parts, drawn, strict=True), start=1)
        )


def draw(
    pattern: Pattern, queries: int, keys: int | None = None, num_heads: int | None = None
) -> Drawing:
    """Return the drawing of a pattern for queries that stand last among the keys.

    A pair takes the first part of `|` that allows it; of parts joined by `&`, the most specific.

    Args:
        pattern: what to draw.
        queries: positions, tokens.
        keys: positions, tokens; None = as many as queries.
        num_heads: None = as many as the pattern is made for, or one.

    Raises:
        ConfigError: for sizes that cannot be drawn.

    Example:
        >>> from suffice.patterns import Causal
        >>> draw(Causal(), 2).panels[0].cells.tolist()
        [[1, 0], [1, 1]]
    """
    keys = queries if keys is None else keys
    heads = (pattern.heads or 1) if num_heads is None else num_heads
    _check(pattern, queries, keys, heads)
    of_heads = pattern.of_heads(heads)
    q = torch.arange(keys - queries, keys)[:, None]
    k = torch.arange(keys)[None, :]
    numbers: dict[Part, int] = {}
    alike: dict[bytes, list[int]] = {}
    found: dict[bytes, Tensor] = {}
    for head in range(heads):
        cells = torch.zeros(queries, keys, dtype=torch.int64)
        for part, mask in layers(pattern, q, k, head):
            number = numbers.setdefault(part, len(numbers) + 1)
            cells.masked_fill_((cells == 0) & mask, number)
        key = cells.numpy().tobytes()
        alike.setdefault(key, []).append(head + 1)
        found[key] = cells
    panels = tuple(
        Panel(tuple(same), found[key], computed_pairs(of_heads[same[0] - 1], queries, keys))
        for key, same in alike.items()
    )
    return Drawing(expression(pattern), tuple(numbers), panels)


def _check(pattern: Pattern, queries: int, keys: int, heads: int) -> None:
    if heads < 1:
        raise ConfigError(f"num_heads={heads} leaves nothing to draw; give at least 1.")
    if not (1 <= queries <= LONGEST and 1 <= keys <= LONGEST):
        raise ConfigError(
            f"{queries} queries and {keys} keys cannot be drawn; give 1 to {LONGEST} of each."
        )
    if pattern.max_length is not None and keys > pattern.max_length:
        raise ConfigError(
            f"{expression(pattern)} is made for at most {pattern.max_length} positions; "
            f"{keys} cannot be drawn."
        )
