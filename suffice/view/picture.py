"""Drawings as SVG files."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from suffice.errors import ConfigError
from suffice.patterns import Pattern
from suffice.utils.files import replacing
from suffice.view.drawing import FAINT, HIDDEN, INK, PAGE, Drawing, Panel, cell_styles, draw

SIDES = (448, 352, 272, 224)  # of a panel when one, two, three or more stand side by side
MARGIN = 24
AXIS = 44  # room for the names and numbers of an axis
GAP = 30  # between panels
LINE = 19  # height of a line of text
MARK = 13  # side of a colour in the legend
TITLE, PLAIN, SMALL = 15, 12, 11  # sizes of text
MIN_WIDTH = 512
TICKS = 8  # numbers along an axis, at most
TICK = 30  # pixels from one number to the next, at least
MIN_LINED_SIDE = 5  # side of a cell from which cells have lines between them


@dataclass(frozen=True, kw_only=True)
class TextLine:
    x: float  # of the anchor
    y: float  # of the baseline
    text: str
    size: int = PLAIN
    colour: str = INK
    anchor: str = "start"  # or "middle" or "end"
    bold: bool = False
    upright: bool = True  # False rotates it a quarter to the left


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The upper left corner of a panel and the side of its cells."""

    panel: Panel
    x: int
    y: int
    cell: int

    @property
    def width(self) -> int:
        return self.cell * self.panel.cells.shape[1]

    @property
    def height(self) -> int:
        return self.cell * self.panel.cells.shape[0]

    @property
    def lined(self) -> bool:
        """Whether cells are wide enough for lines between them."""
        return self.cell >= MIN_LINED_SIDE


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page, in pixels."""

    width: int
    height: int
    colours: tuple[str, ...]  # of the parts, from part 1
    frames: tuple[Frame, ...]
    words: tuple[TextLine, ...]
    marks: tuple[tuple[int, int, int], ...]  # squares of the legend: x, y, number of the part


def arrange(drawing: Drawing, title: str | None = None) -> Page:
    """Return the page of a drawing; its title is the pattern as code unless one is given."""
    panels = drawing.panels
    across = min(len(panels), len(SIDES))
    queries, keys = panels[0].cells.shape
    cell = max(1, SIDES[across - 1] // max(queries, keys))
    wide = max(cell * keys, 120)
    width = max(MIN_WIDTH, 2 * MARGIN + AXIS + across * wide + (across - 1) * (GAP + AXIS))
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
        colours=tuple(style.colour for style in cell_styles(drawing.parts)),
        frames=tuple(frames),
        words=tuple(words + words_below),
        marks=tuple(marks),
    )


def _lines(
    text: str, width: int, size: int, y: int, *, bold: bool = False, colour: str = INK
) -> list[TextLine]:
    room = int((width - 2 * MARGIN) / (size * (0.66 if bold else 0.58)))
    return [
        TextLine(x=MARGIN, y=y + LINE * number, text=line, size=size, bold=bold, colour=colour)
        for number, line in enumerate(textwrap.wrap(text, room))
    ]


def _heading(panel: Panel, x: int, y: int, wide: int) -> list[TextLine]:
    computed = f"{panel.computed:,}" if panel.computed else "none"
    counts = f"{panel.visible:,} visible ({panel.share:.1%}), {computed} computed"
    label = panel.named(wide // 9)
    return [
        TextLine(x=x, y=y + SMALL, text=label, bold=True),
        TextLine(x=x, y=y + SMALL + 16, text=counts, size=SMALL, colour=FAINT),
    ]


def _axes(frame: Frame) -> list[TextLine]:
    queries, keys = frame.panel.cells.shape
    first = max(0, keys - queries)  # queries stand last among the keys
    across, down = frame.x + frame.width / 2, frame.y + frame.height / 2
    words = [
        TextLine(x=across, y=frame.y - 24, text="keys", anchor="middle"),
        TextLine(x=frame.x - 34, y=down, text="queries", anchor="middle", upright=False),
    ]
    small = {"size": SMALL, "colour": FAINT}
    for key in range(0, keys, _step(keys, frame.cell)):
        x = frame.x + (key + 0.5) * frame.cell
        words.append(TextLine(x=x, y=frame.y - 7, text=str(key), anchor="middle", **small))
    for query in range(0, queries, _step(queries, frame.cell)):
        y = frame.y + (query + 0.5) * frame.cell + 4
        words.append(TextLine(x=frame.x - 7, y=y, text=str(first + query), anchor="end", **small))
    return words


def _step(size: int, cell: int) -> int:
    step = 1
    while size > step * TICKS or step * cell < TICK:
        step *= 2
    return step


def _legend(
    drawing: Drawing, width: int, y: int
) -> tuple[list[TextLine], list[tuple[int, int, int]]]:
    words: list[TextLine] = []
    marks: list[tuple[int, int, int]] = []
    for number, name in drawing.legend:
        lines = _lines(name, width - MARK - 9, PLAIN, y + 11 + LINE * len(words))
        marks.append((MARGIN, y + LINE * len(words), number))
        words += [replace(line, x=MARGIN + MARK + 9) for line in lines]
    return words, marks


FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"


def svg(drawing: Drawing, title: str | None = None) -> str:
    """Return a drawing as one SVG document."""
    page = arrange(drawing, title)
    size = f'width="{page.width}" height="{page.height}" viewBox="0 0 {page.width} {page.height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}">',
        f"<title>{escape(title or drawing.expression)}</title>",
        f'<rect width="{page.width}" height="{page.height}" fill="{PAGE}"/>',
    ]
    for frame in page.frames:
        parts += _cells_svg(frame, page.colours)
    for x, y, number in page.marks:
        fill = page.colours[number - 1]
        parts.append(f'<rect x="{x}" y="{y}" width="{MARK}" height="{MARK}" fill="{fill}"/>')
    parts += map(_words, page.words)
    return "\n".join([*parts, "</svg>", ""])


def _cells_svg(frame: Frame, colours: tuple[str, ...]) -> list[str]:
    """Return a path for each part, runs of equal cells in one piece."""
    queries, keys = frame.panel.cells.shape
    pieces: dict[int, list[str]] = {number: [] for number in range(1, len(colours) + 1)}
    for row, numbers in enumerate(frame.panel.cells.tolist()):
        column = 0
        for number, same in groupby(numbers):
            long = len(list(same))
            if number:
                pieces[number].append(f"M{column} {row}h{long}v1h-{long}z")
            column += long
    at = f'transform="translate({frame.x} {frame.y}) scale({frame.cell})"'
    drawn = [f'<g {at} shape-rendering="crispEdges">']
    drawn.append(f'<rect width="{keys}" height="{queries}" fill="{HIDDEN}"/>')
    for number, runs in pieces.items():
        if runs:
            drawn.append(f'<path fill="{colours[number - 1]}" d="{"".join(runs)}"/>')
    if frame.lined:
        across = "".join(f"M0 {row}h{keys}" for row in range(1, queries))
        down = "".join(f"M{key} 0v{queries}" for key in range(1, keys))
        line = f'stroke="{PAGE}" stroke-width="{1 / frame.cell:.4g}"'
        drawn.append(f'<path {line} d="{across}{down}"/>')
    return [*drawn, "</g>"]


def _words(words: TextLine) -> str:
    x, y = f"{words.x:g}", f"{words.y:g}"
    attributes = f'font-size="{words.size}" fill="{words.colour}"'
    if words.anchor != "start":
        attributes += f' text-anchor="{words.anchor}"'
    if words.bold:
        attributes += ' font-weight="bold"'
    if not words.upright:
        attributes += f' transform="rotate(-90 {x} {y})"'
    return f'<text x="{x}" y="{y}" {attributes}>{escape(words.text)}</text>'


def picture(
    path: Path | str,
    pattern: Pattern,
    queries: int,
    keys: int | None = None,
    num_heads: int | None = None,
    *,
    title: str | None = None,
) -> Path:
    """Draw a pattern into a .svg file: queries down, keys across, coloured by part.

    Args:
        title: title of the drawing; None: the pattern as code.
    """
    return write(Path(path), draw(pattern, queries, keys, num_heads), title)


def write(path: Path, drawing: Drawing, title: str | None = None) -> Path:
    """Write a drawing into a .svg file and return its path, or raise ConfigError."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"a picture cannot be written to {path}: name a .svg file.")
    try:
        with replacing(path) as temporary:
            temporary.write_text(svg(drawing, title), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(
            f"a picture cannot be written to {path}: {error.strerror or error}; name a file in a "
            "folder that is there and may be written to."
        ) from error
    return path
