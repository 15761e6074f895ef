"""A drawing of a pattern, as cells and a legend, and as text.

Letters: H heads, T queries, S keys.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import and_
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns import And, Block, Or, Pattern, PerHead, Window
from suffice.spec.cost import BLOCK, computed_pairs
from suffice.utils.records import Axis

if TYPE_CHECKING:
    from suffice.spec import AttentionSpec


SIGNS: dict[type[Pattern], str] = {And: " & ", Or: " | "}


def expression(value: Axis) -> str:
    """Return the code of an axis value, without fields that have their default.

    Example:
        >>> from suffice.patterns import Causal, Full
        >>> expression((Full() | Causal()) & Causal())
        '(Full() | Causal()) & Causal()'
    """
    if type(value) in SIGNS:
        return SIGNS[type(value)].join(map(_operand, flat(value)))  # type: ignore[arg-type]
    arguments = [
        f"{field.name}={_written(item)}"
        for field in dataclasses.fields(value)  # type: ignore[arg-type]
        if field.repr and (item := getattr(value, field.name)) != field.default
    ]
    return f"{type(value).__name__}({', '.join(arguments)})"


def brief(value: Axis) -> str:
    """Return an axis value by the names of the classes it is made of.

    Example:
        >>> from suffice.patterns import Causal, Full
        >>> brief((Full() | Causal()) & Causal())
        '(Full | Causal) & Causal'
    """
    if type(value) in SIGNS:
        named = [
            f"({brief(part)})" if type(part) in SIGNS else brief(part)
            for part in flat(value)  # type: ignore[arg-type]
        ]
        return SIGNS[type(value)].join(dict.fromkeys(named))
    values: list[Axis] = []
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        items = item if isinstance(item, tuple) else (item,)
        values += [part for part in items if isinstance(part, Axis) and item != field.default]
    inner = ", ".join(dict.fromkeys(map(brief, values)))
    return f"{type(value).__name__}({inner})" if inner else type(value).__name__


def flat(pattern: Pattern) -> list[Pattern]:
    """Return the parts that `&` or `|` joins, nested ones of the same kind included."""
    parts: list[Pattern] = []
    for part in pattern.parts:  # type: ignore[attr-defined]
        parts += flat(part) if type(part) is type(pattern) else [part]
    return parts


def _operand(part: Pattern) -> str:
    written = expression(part)
    return f"({written})" if type(part) in SIGNS else written


def _written(item: object) -> str:
    if isinstance(item, Axis):
        return expression(item)
    if isinstance(item, tuple):
        return f"({', '.join(map(_written, item))}{',' * (len(item) == 1)})"
    return repr(item)


@dataclass(frozen=True)
class Part:
    """One part of a composed pattern: the class that colours it, and its name in the legend."""

    kind: str
    name: str

    def over_blocks(self, size: int) -> Part:
        """Return the same part of a pattern of blocks."""
        return Part(self.kind, f"{self.name} over blocks of {size}")


Layers = list[tuple[Part, Tensor]]
PAINTED = {"Global": 0, "Random": 2}
"""Parts of `|` that are painted before (0) or after (2) the others: whole rows stay whole, and what
is drawn at random shows only where nothing else allows a pair."""


def layers(pattern: Pattern, q: Tensor, k: Tensor, head: int = 0) -> Layers:
    """Return the parts of a pattern and where each allows a pair, bool [T, S].

    Positions are q [T, 1] and k [1, S]; the union of all parts is what the pattern allows. Of parts
    joined by `&` the most specific one is named: one that leaves whole regions out before one that
    does not, then the one with the fewest pairs here, then the first.

    Example:
        >>> from suffice.patterns import Causal, Window
        >>> at = torch.arange(4)
        >>> [part.kind for part, _ in layers(Window(2) & Causal(), at[:, None], at[None])]
        ['Window']
    """
    if isinstance(pattern, PerHead):
        return layers(pattern.patterns[head], q, k)
    if isinstance(pattern, Or):
        parts = sorted(flat(pattern), key=lambda part: PAINTED.get(type(part).__name__, 1))
        return [layer for part in parts for layer in layers(part, q, k, head)]
    if isinstance(pattern, And):
        return _joined(flat(pattern), q, k, head)
    if isinstance(pattern, Block) and pattern.over != Window(1):
        inner = layers(pattern.over, q // pattern.size, k // pattern.size, head)
        return [(part.over_blocks(pattern.size), mask) for part, mask in inner]
    return [(Part(type(pattern).__name__, expression(pattern)), _allowed(pattern, q, k, head))]


def _joined(parts: list[Pattern], q: Tensor, k: Tensor, head: int) -> Layers:
    """Return the most specific part of `&`, cut down to what the others allow."""
    parts = [part.patterns[head] if isinstance(part, PerHead) else part for part in parts]
    masks = [_allowed(part, q, k, head) for part in parts]
    named = min(range(len(parts)), key=lambda i: (parts[i].dense, int(masks[i].sum())))
    others = [mask for i, mask in enumerate(masks) if i != named]
    inner = layers(parts[named], q, k, head)
    return [(part, reduce(and_, others, mask)) for part, mask in inner]


def _allowed(pattern: Pattern, q: Tensor, k: Tensor, head: int) -> Tensor:
    allowed = pattern.allowed(q, k)
    if allowed.dim() > q.dim():
        allowed = allowed[head]
    return allowed.expand(torch.broadcast_shapes(q.shape, k.shape))


MAX_POSITIONS = 2048  # positions; beyond, a cell of a picture would be smaller than its dots


@dataclass(frozen=True, eq=False)
class Panel:
    """The heads that see the same pairs."""

    heads: tuple[int, ...]  # numbers from 1
    cells: Tensor  # int64 [T, S], 0 = hidden, n = allowed by part n of the drawing, from 1
    computed: int  # pairs that an op computes, with those it masks afterwards

    @property
    def visible(self) -> int:
        """Number of pairs that these heads see."""
        return int((self.cells > 0).sum())

    @property
    def share(self) -> float:
        """Share of all pairs that these heads see."""
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
        numbers = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        named = f"head{'s' * (len(self.heads) > 1)} {numbers}"
        return named if len(named) <= room else f"head {self.heads[0]} +{len(self.heads) - 1}"


@dataclass(frozen=True, eq=False)
class Drawing:
    """An attention pattern: queries down, keys across, a panel for each group of equal heads."""

    expression: str  # the pattern as code
    parts: tuple[Part, ...]  # numbered from 1 in the cells
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
    """Return the drawing of a pattern for queries aligned with the last keys.

    A pair takes the first part of `|` that allows it, global ones first and random ones last; of
    parts joined by `&`, the most specific.

    Args:
        keys: number of keys, tokens; None: one for each query.
        num_heads: number of heads; None: those the pattern is made for, or one.

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
    cells_of: dict[bytes, Tensor] = {}
    for head in range(heads):
        cells = torch.zeros(queries, keys, dtype=torch.int64)
        for part, mask in layers(pattern, q, k, head):
            number = numbers.setdefault(part, len(numbers) + 1)
            cells.masked_fill_((cells == 0) & mask, number)
        key = cells.numpy().tobytes()
        alike.setdefault(key, []).append(head + 1)
        cells_of[key] = cells
    panels = tuple(
        Panel(tuple(same), cells_of[key], computed_pairs(of_heads[same[0] - 1], queries, keys))
        for key, same in alike.items()
    )
    return Drawing(expression(pattern), tuple(numbers), panels)


def _check(pattern: Pattern, queries: int, keys: int, heads: int) -> None:
    if heads < 1:
        raise ConfigError(f"num_heads={heads} leaves nothing to draw; give at least 1.")
    if not (1 <= queries <= MAX_POSITIONS and 1 <= keys <= MAX_POSITIONS):
        raise ConfigError(
            f"{queries} queries and {keys} keys cannot be drawn; give 1 to {MAX_POSITIONS} of each."
        )
    if pattern.max_length is not None and keys > pattern.max_length:
        raise ConfigError(
            f"{expression(pattern)} is made for at most {pattern.max_length} positions; "
            f"{keys} cannot be drawn."
        )


SLATE = "#8995a9"
COLOURS = {
    "Full": SLATE,
    "Causal": SLATE,
    "Window": "#1a62a5",
    "Dilated": "#86c6ee",
    "Global": "#dd5516",
    "Random": "#5dba88",
    "Strided": "#f5ca48",
    "Fixed": "#f5ca48",
    "Block": "#40236f",
    "Neighbourhood": "#1a62a5",
    "ShiftedWindows": "#1a62a5",
}
FREE = ("#be3888", "#0d5a41", "#1c222d")  # for patterns of a user's own
SHADES = {"Global": "▒", "Random": "░", "Strided": "▒", "Fixed": "▒", "Dilated": "▒"}
SOLID = "█"
MORE = "█▒░▓"

HIDDEN = "#f2f4f7"
PAGE = "#ffffff"
INK = "#1f2430"
FAINT = "#5f6775"


@dataclass(frozen=True)
class CellStyle:
    """Colour, shade and letter of a part of a drawing."""

    colour: str  # "#rrggbb"
    shade: str  # character of a drawing in blocks
    letter: str  # character of a drawing in plain letters


def cell_styles(parts: Sequence[Part]) -> tuple[CellStyle, ...]:
    """Assign each part a distinct style; styles repeat after the last one."""
    colours: list[str] = []
    shades: list[str] = []
    letters: list[str] = []
    palette = [*FREE, *dict.fromkeys(COLOURS.values())]
    alphabet = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    for part in parts:
        colours.append(_first([COLOURS.get(part.kind, palette[0]), *palette], colours))
        shades.append(_first([SHADES.get(part.kind, SOLID), *MORE, *alphabet], shades))
        name = part.kind[0].upper() + part.kind[1:]
        letters.append(_first([*filter(str.isascii, name), *alphabet], letters))
    return tuple(map(CellStyle, colours, shades, letters))


def _first(choices: Sequence[str], taken: Sequence[str]) -> str:
    return min(choices, key=taken.count)


def drawing_of(spec: AttentionSpec, length: int) -> Drawing:
    """Return the drawing of a layer's pattern for `length` tokens, or for the first that fit."""
    tokens = min(length, MAX_POSITIONS)
    drawing = draw(spec.pattern, tokens, spec.mixing.reads(tokens), spec.num_heads)
    if spec.lane == "pairs":
        return drawing
    return replace(drawing, panels=tuple(replace(panel, computed=0) for panel in drawing.panels))


def instead(spec: AttentionSpec, length: int) -> list[str]:
    """Return a sentence for each fact that a drawing of pairs does not show.

    Example:
        >>> from suffice import preset
        >>> instead(preset("super_attention", 64, 4, length=9), 9)
        ['Alignment mixes values along the sequence first: what a key holds comes from others too.']
    """
    notes = []
    mixing, kernel = type(spec.mixing).__name__, type(spec.kernel).__name__
    if not spec.mixing.keeps_keys:
        notes.append(
            f"{mixing} reads {spec.mixing.reads(length):,} keys in place of {length:,}, each a "
            "learned sum of them all."
        )
    elif "mixing" in spec.beyond_pairs:
        notes.append(
            f"{mixing} mixes values along the sequence first: what a key holds comes from others "
            "too."
        )
    if spec.lane == "recurrence":
        notes.append(
            f"{kernel} computes no pairs: it reads a state that every token changes, in which what "
            "came long before counts less or is replaced."
        )
    elif spec.lane != "pairs":
        notes.append(
            f"{kernel} computes no pairs: it sums features over the keys that a query may see, "
            "which are these."
        )
    if length > MAX_POSITIONS:
        notes.append(f"Drawn are the first {MAX_POSITIONS:,} of {length:,} tokens.")
    return notes


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
        width: maximum of columns; a cell stands for several positions where there are too few.
        rows: maximum of lines of cells.
        unicode: False draws with letters.

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
