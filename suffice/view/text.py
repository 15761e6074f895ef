"""A drawing in characters, for a terminal or a page of plain text."""

from __future__ import annotations

import textwrap
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.patterns import Pattern
from suffice.view.drawing import Drawing, Panel, cell_styles, draw

CELL = 2  # columns of a cell: about as wide as a line is high
GAP = 3  # columns between two panels
HEADER = 12  # columns that a name of heads may take
MIN_CELLS = 16  # cells a panel should keep when panels stand side by side

Run = tuple[str, int]  # characters, and the number of the part they show; 0 = none


def text(
    pattern: Pattern,
    queries: int,
    keys: int | None = None,
    num_heads: int | None = None,
    *,
    width: int = 80,
    rows: int = 32,
    unicode: bool = True,
) -> str:
    """Return a pattern drawn in characters: queries down, keys across, a legend below.

    Args:
        pattern: pattern to draw.
        queries: number of queries, tokens; they stand last among the keys.
        keys: number of keys, tokens; None: one for each query.
        num_heads: number of heads; None: those the pattern is made for, or one.
        width: maximum of columns; a cell stands for several positions where there are too few.
        rows: maximum of lines of cells.
        unicode: False draws with letters.

    Raises:
        ConfigError: for sizes that cannot be drawn.

    Example:
        >>> from suffice.patterns import Causal
        >>> print(text(Causal(), 3, unicode=False))
        C . .
        C C .
        C C C
        <BLANKLINE>
        C  Causal(): 6 pairs
        Queries down, keys across.
        6 of 9 pairs visible (66.7%), 9 computed in blocks of 64.
    """
    drawing = draw(pattern, queries, keys, num_heads)
    drawn = lines(drawing, width=width, rows=rows, unicode=unicode)
    return "\n".join("".join(characters for characters, _ in line).rstrip() for line in drawn)


def lines(
    drawing: Drawing, *, width: int = 80, rows: int = 32, unicode: bool = True
) -> list[list[Run]]:
    """Return the lines of a drawing, each as runs of characters of one part; sizes as in `text`."""
    panels = drawing.panels
    across, step = _fit(panels, width, rows)
    signs = [("· " if unicode else ". ")]
    for style in cell_styles(drawing.parts):
        signs.append(style.shade * CELL if unicode else f"{style.letter} ")
    drawn: list[list[Run]] = []
    for first in range(0, len(panels), across):
        drawn += _side_by_side(panels[first : first + across], signs, step, named=len(panels) > 1)
        drawn.append([])
    for number, name in drawing.legend:
        drawn += [[(signs[number], number), (" ", 0), (name, 0)]]
    caption = "Queries down, keys across."
    if step > 1:
        caption = (
            f"Queries down, keys across; a cell stands for {step} x {step} pairs and shows the "
            "part that allows most of them, if any does."
        )
    notes = [caption] + [
        f"{panel.named(width)}: {panel.counts}." if len(panels) > 1 else f"{panel.counts}."
        for panel in panels
    ]
    for note in notes:
        drawn += [[(line, 0)] for line in textwrap.wrap(note, max(width, 20))]
    return drawn


def _fit(panels: tuple[Panel, ...], width: int, rows: int) -> tuple[int, int]:
    queries, keys = panels[0].cells.shape
    across = len(panels)
    while across > 1 and _columns(width, across) < min(MIN_CELLS, max(keys, HEADER // CELL)):
        across -= 1
    step = 1
    while keys > step * _columns(width, across) or queries > step * rows:
        step *= 2
    return across, step


def _columns(width: int, across: int) -> int:
    return max(1, (width - GAP * (across - 1)) // (across * CELL))


def _side_by_side(
    panels: tuple[Panel, ...], signs: list[str], step: int, *, named: bool
) -> list[list[Run]]:
    shrunk = [_shrunk(panel.cells, step, len(signs)) for panel in panels]
    wide = CELL * shrunk[0].shape[1]
    if named:
        wide = max(wide, HEADER)
    drawn: list[list[Run]] = []
    if named:
        drawn.append([(panel.named(HEADER).ljust(wide + GAP), 0) for panel in panels])
    for row in range(shrunk[0].shape[0]):
        line: list[Run] = []
        for cells in shrunk:
            numbers = cells[row].tolist()
            line += [(signs[n] * len(list(same)), n) for n, same in groupby(numbers)]
            line.append((" " * (wide + GAP - CELL * len(numbers)), 0))
        drawn.append(line)
    return drawn


def _shrunk(cells: Tensor, step: int, numbers: int) -> Tensor:
    """Return one cell for step x step cells each: the part with most of them, if any."""
    if step == 1:
        return cells
    down, across = (-(-size // step) * step for size in cells.shape)
    padded = F.pad(cells, (0, across - cells.shape[1], 0, down - cells.shape[0]))
    blocks = padded.unflatten(0, (-1, step)).unflatten(2, (-1, step))
    counts = torch.stack([(blocks == n).sum(dim=(1, 3)) for n in range(1, numbers)])
    most, number = counts.max(dim=0)
    return torch.where(most > 0, number + 1, 0)
