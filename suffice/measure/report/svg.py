"""Figures as SVG to stand inside a page, in the page's own colours."""

from __future__ import annotations

import re
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from suffice.measure.report.canvas import style
from suffice.measure.report.palette import themed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline(figure: Figure, name: str, described: str) -> str:
    """Return a figure as one svg element.

    Its identifiers start with its name, so that several can share a page; its colours are the
    variables of `colour_variables`, so that they follow the page's theme; it carries no date,
    so that equal results give equal pages.

    Args:
        figure: what to write.
        name: of the figure, a plain word.
        described: what it shows, for those who cannot see it.
    """
    import matplotlib

    stream = StringIO()
    with style():
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.savefig(stream, format="svg", transparent=True, metadata=NOTHING)
    text = stream.getvalue()
    drawing = text[text.index("<g id=") :]
    width, height = figure.get_size_inches()
    box = f'viewBox="0 0 {72 * width:g} {72 * height:g}" style="max-width: {width:g}in"'
    # only tags are changed: what stands between them is text, such as a mechanism's name
    drawing = re.sub(r"<[^>]*>", lambda tag: _adapt(tag.group(), name), drawing)
    return f'<svg role="img" aria-label="{escape(described)}" {box}>\n{drawing}'


def _adapt(tag: str, name: str) -> str:
    """Make the identifiers of one tag the figure's own and its colours the page's."""
    tag = re.sub(r'(\bid="|\bxlink:href="#|\burl\(#)', rf"\g<1>{name}-", tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var({_variable(found.group())})", tag)


def colour_variables(*, dark: bool) -> str:
    """Return the css variables of all colours, for a light or a dark page."""
    return " ".join(
        f"{_variable(light)}: {night if dark else light};" for light, night in themed().items()
    )


def _variable(colour: str) -> str:
    """Name the variable of a colour.

    Example:
        >>> _variable("#0072b2")
        '--c0072b2'
    """
    return f"--c{colour[1:]}"
