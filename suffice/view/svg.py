"""A drawing as SVG: written by hand, so that equal drawings are equal files everywhere."""

from __future__ import annotations

from itertools import groupby
from xml.sax.saxutils import escape

from suffice.view.drawing import Drawing
from suffice.view.looks import HIDDEN, PAGE
from suffice.view.page import MARK, Frame, Words, arrange

FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"


def svg(drawing: Drawing, title: str | None = None) -> str:
    """Return a drawing as one SVG document.

    Args:
        drawing: what to show.
        title: above it; None = the pattern as code.
    """
    page = arrange(drawing, title)
    size = f'width="{page.width}" height="{page.height}" viewBox="0 0 {page.width} {page.height}"'
    told = escape(title or drawing.expression)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}">',
        f"<title>{told}</title>",
        f'<rect width="{page.width}" height="{page.height}" fill="{PAGE}"/>',
    ]
    for frame in page.frames:
        parts += _cells(frame, page.colours)
    for x, y, number in page.marks:
        fill = page.colours[number - 1]
        parts.append(f'<rect x="{x}" y="{y}" width="{MARK}" height="{MARK}" fill="{fill}"/>')
    parts += map(_words, page.words)
    return "\n".join([*parts, "</svg>", ""])


def _cells(frame: Frame, colours: tuple[str, ...]) -> list[str]:
    """Return the cells of a panel: a path for each part, runs of equal cells in one piece."""
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
    for number, found in pieces.items():
        if found:
            drawn.append(f'<path fill="{colours[number - 1]}" d="{"".join(found)}"/>')
    if frame.lined:
        across = "".join(f"M0 {row}h{keys}" for row in range(1, queries))
        down = "".join(f"M{key} 0v{queries}" for key in range(1, keys))
        line = f'stroke="{PAGE}" stroke-width="{1 / frame.cell:.4g}"'
        drawn.append(f'<path {line} d="{across}{down}"/>')
    return [*drawn, "</g>"]


def _words(words: Words) -> str:
    x, y = f"{words.x:g}", f"{words.y:g}"
    looks = f'font-size="{words.size}" fill="{words.colour}"'
    if words.anchor != "start":
        looks += f' text-anchor="{words.anchor}"'
    if words.bold:
        looks += ' font-weight="bold"'
    if not words.upright:
        looks += f' transform="rotate(-90 {x} {y})"'
    return f'<text x="{x}" y="{y}" {looks}>{escape(words.text)}</text>'
