"""A drawing as PNG, by matplotlib; nothing of its global state is changed."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from suffice.view.drawing import Drawing
from suffice.view.looks import HIDDEN, PAGE
from suffice.view.page import MARK, Frame, Page, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCH = 100  # pixels of a page
SHARP = 2  # pixels of the file for one of the page
POINT = 72 / INCH


def figure(drawing: Drawing, title: str | None = None) -> Figure:
    """Return a drawing as a figure of matplotlib; each panel's image holds its cells.

    Args:
        drawing: what to show.
        title: above it; None = the pattern as code.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    page = arrange(drawing, title)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        made = Figure(figsize=(page.width / INCH, page.height / INCH), dpi=INCH, facecolor=PAGE)
        sheet = made.add_axes((0, 0, 1, 1), xlim=(0, page.width), ylim=(page.height, 0))
        sheet.set_axis_off()
        for frame in page.frames:
            _cells(made, frame, page)
        for x, y, number in page.marks:
            colour = page.colours[number - 1]
            sheet.add_patch(Rectangle((x, y), MARK, MARK, color=colour, linewidth=0))
        for words in page.words:
            sheet.text(
                words.x,
                words.y,
                words.text,
                fontsize=words.size * POINT,
                fontfamily="DejaVu Sans",
                fontweight="bold" if words.bold else "normal",
                color=words.colour,
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[
                    words.anchor
                ],
                verticalalignment="baseline",
                rotation=0 if words.upright else 90,
                rotation_mode="anchor",
                parse_math=False,
            )
    return made


def _cells(made: Figure, frame: Frame, page: Page) -> Axes:
    """Put the cells of a panel where they belong, a whole number of pixels each."""
    from matplotlib.colors import ListedColormap

    bottom = page.height - frame.y - frame.height
    place = (
        frame.x / page.width,
        bottom / page.height,
        frame.width / page.width,
        frame.height / page.height,
    )
    axes = made.add_axes(place)
    axes.set_axis_off()
    colours = ListedColormap([HIDDEN, *page.colours])
    axes.imshow(
        frame.panel.cells.numpy(),
        cmap=colours,
        vmin=-0.5,
        vmax=len(page.colours) + 0.5,
        interpolation="nearest",
        aspect="auto",
    )
    if frame.lined:
        queries, keys = frame.panel.cells.shape
        for row in range(1, queries):
            axes.axhline(row - 0.5, color=PAGE, linewidth=POINT)
        for key in range(1, keys):
            axes.axvline(key - 0.5, color=PAGE, linewidth=POINT)
    return axes


def png(drawing: Drawing, title: str | None = None) -> bytes:
    """Return a drawing as the content of a PNG file; arguments as `figure`."""
    stream = BytesIO()
    figure(drawing, title).savefig(stream, format="png", dpi=INCH * SHARP)
    return stream.getvalue()
