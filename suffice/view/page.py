"""Where everything stands on the page of a picture: one layout for PNG and SVG.

All measures are pixels of a page at scale 1, from its upper left corner.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

from suffice.view.drawing import Drawing, Panel
from suffice.view.looks import FAINT, INK, looks

SIDES = (448, 352, 272, 224)  # of a panel when one, two, three or more stand side by side
MARGIN = 24
AXIS = 44  # room for the names and numbers of an axis
GAP = 30  # between panels
LINE = 19  # height of a line of text
MARK = 13  # side of a colour in the legend
TITLE, PLAIN, SMALL = 15, 12, 11  # sizes of text
NARROWEST = 512
TICKS = 8  # numbers along an axis, at most
TICK = 30  # pixels from one number to the next, at least
LINED = 5  # side of a cell from which cells have lines between them


@dataclass(frozen=True, kw_only=True)
class Words:
    """A line of text.

    Args:
        x: left end, middle or right end, as `anchor` says.
        y: baseline.
        text: what it says.
        size: of the letters.
        colour: "#rrggbb".
        anchor: "start", "middle" or "end".
        bold: heavier letters.
        upright: False turns it a quarter to the left.
    """

    x: float
    y: float
    text: str
    size: int = PLAIN
    colour: str = INK
    anchor: str = "start"
    bold: bool = False
    upright: bool = True


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The cells of one panel.

    Args:
        panel: what it shows.
        x: of its left side.
        y: of its upper side.
        cell: side of a cell.
    """

    panel: Panel
    x: int
    y: int
    cell: int

    @property
    def width(self) -> int:
        """Width of all cells."""
        return self.cell * self.panel.cells.shape[1]

    @property
    def height(self) -> int:
        """Height of all cells."""
        return self.cell * self.panel.cells.shape[0]

    @property
    def lined(self) -> bool:
        """Whether cells are wide enough for lines between them."""
        return self.cell >= LINED


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page.

    Args:
        width: of the page.
        height: of the page.
        colours: of the parts, from part 1.
        frames: the panels.
        words: all text.
        marks: the legend's squares: x, y and the number of the part.
    """

    width: int
    height: int
    colours: tuple[str, ...]
    frames: tuple[Frame, ...]
    words: tuple[Words, ...]
    marks: tuple[tuple[int, int, int], ...]


def arrange(drawing: Drawing, title: str | None = None) -> Page:
    """Return the page of a drawing.

    Args:
        drawing: what to show.
        title: None = the pattern as code.
    """
    panels = drawing.panels
    across = min(len(panels), len(SIDES))
    queries, keys = panels[0].cells.shape
    cell = max(1, SIDES[across - 1] // max(queries, keys))
    wide = max(cell * keys, 120)
    width = max(NARROWEST, 2 * MARGIN + AXIS + across * wide + (across - 1) * (GAP + AXIS))
    words = _lines(title or drawing.expression, width, TITLE, MARGIN + TITLE, bold=True)
    y = MARGIN + TITLE + LINE * len(words) - 2
    if len(panels) == 1:
        words += _lines(panels[0].counts, width, SMALL, y, colour=FAINT)
        y = int(words[-1].y) + 6
    frames: list[Frame] = []
    down = AXIS + cell * queries + (0 if len(panels) == 1 else 2 * LINE)
    for number, panel in enumerate(panels):
        row, column = divmod(number, across)
        x = MARGIN + AXIS + column * (wide + GAP + AXIS)
        top = y + row * (down + GAP)
        if len(panels) > 1:
            words += _heading(panel, x, top, wide)
            top += 2 * LINE
        frames.append(Frame(panel=panel, x=x, y=top + AXIS, cell=cell))
        words += _axes(frames[-1])
    y = frames[-1].y + frames[-1].height + 16
    words_below, marks = _legend(drawing, width, y)
    return Page(
        width=width,
        height=y + LINE * len(words_below) + MARGIN - 6,
        colours=tuple(look.colour for look in looks(drawing.parts)),
        frames=tuple(frames),
        words=tuple(words + words_below),
        marks=tuple(marks),
    )


def _lines(
    text: str, width: int, size: int, y: int, *, bold: bool = False, colour: str = INK
) -> list[Words]:
    """Return a paragraph that fills the page, its first baseline at y."""
    room = int((width - 2 * MARGIN) / (size * (0.66 if bold else 0.58)))
    return [
        Words(x=MARGIN, y=y + LINE * number, text=line, size=size, bold=bold, colour=colour)
        for number, line in enumerate(textwrap.wrap(text, room))
    ]


def _heading(panel: Panel, x: int, y: int, wide: int) -> list[Words]:
    """Return what stands above one of several panels."""
    computed = f"{panel.computed:,}" if panel.computed else "none"
    counts = f"{panel.visible:,} visible ({panel.share:.1%}), {computed} computed"
    label = panel.named(wide // 9)
    return [
        Words(x=x, y=y + SMALL, text=label, bold=True),
        Words(x=x, y=y + SMALL + 16, text=counts, size=SMALL, colour=FAINT),
    ]


def _axes(frame: Frame) -> list[Words]:
    """Return the names of the axes and some positions along them."""
    queries, keys = frame.panel.cells.shape
    first = max(0, keys - queries)  # queries stand last among the keys
    across, down = frame.x + frame.width / 2, frame.y + frame.height / 2
    words = [
        Words(x=across, y=frame.y - 24, text="keys", anchor="middle"),
        Words(x=frame.x - 34, y=down, text="queries", anchor="middle", upright=False),
    ]
    small = {"size": SMALL, "colour": FAINT}
    for key in range(0, keys, _step(keys, frame.cell)):
        x = frame.x + (key + 0.5) * frame.cell
        words.append(Words(x=x, y=frame.y - 7, text=str(key), anchor="middle", **small))
    for query in range(0, queries, _step(queries, frame.cell)):
        y = frame.y + (query + 0.5) * frame.cell + 4
        words.append(Words(x=frame.x - 7, y=y, text=str(first + query), anchor="end", **small))
    return words


def _step(size: int, cell: int) -> int:
    """Return how many cells lie between two numbers of an axis."""
    step = 1
    while size > step * TICKS or step * cell < TICK:
        step *= 2
    return step


def _legend(drawing: Drawing, width: int, y: int) -> tuple[list[Words], list[tuple[int, int, int]]]:
    """Return the names of the parts and the places of their colours, a line each."""
    words: list[Words] = []
    marks: list[tuple[int, int, int]] = []
    for number, name in drawing.legend:
        lines = _lines(name, width - MARK - 9, PLAIN, y + 11 + LINE * len(words))
        marks.append((MARGIN, y + LINE * len(words), number))
        words += [replace(line, x=MARGIN + MARK + 9) for line in lines]
    return words, marks
