"""Names beside points, placed so that they cover neither each other nor a point."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

# where a name may stand, best first: offset in points, horizontal and vertical alignment
PLACES = (
    ((7, 5), "left", "bottom"),
    ((-7, 5), "right", "bottom"),
    ((7, -5), "left", "top"),
    ((-7, -5), "right", "top"),
    ((7, 16), "left", "bottom"),
    ((-7, 16), "right", "bottom"),
    ((7, -16), "left", "top"),
    ((-7, -16), "right", "top"),
)


def place_labels(
    axes: Axes,
    points: dict[str, tuple[float, float]],
    colours: list[str],
    lines: list[tuple[tuple[float, float], tuple[float, float]]],
) -> None:
    """Write each point's name beside it.

    Every place of PLACES is tried; the first that is free and inside the axes is taken, the one
    with the least overlap if none is.

    Args:
        axes: where; its limits must be final.
        points: (x, y) by name.
        colours: of the names, in the same order.
        lines: upright or level lines to keep clear of, from (x, y) to (x, y).
    """
    figure = axes.figure
    figure.draw_without_rendering()
    taken = [_around(axes, point, point, 6) for point in points.values()]
    taken += [_around(axes, start, end, 2) for start, end in lines]
    for (name, point), colour in zip(points.items(), colours, strict=True):
        text = axes.annotate(
            name, point, textcoords="offset points", xytext=(0, 0), color=colour, fontsize=8.5
        )
        worst = []
        for number, (offset, horizontal, vertical) in enumerate(PLACES):
            text.set(position=offset, ha=horizontal, va=vertical)
            box = text.get_window_extent()
            worst.append((_cover(box, taken) + _outside(box, axes), number))
        offset, horizontal, vertical = PLACES[min(worst)[1]]
        text.set(position=offset, ha=horizontal, va=vertical)
        taken.append(text.get_window_extent())


def _around(axes: Axes, start: tuple[float, float], end: tuple[float, float], room: float) -> Bbox:
    """Return the pixels between two points and some room around them."""
    from matplotlib.transforms import Bbox

    corners = axes.transData.transform([start, end])
    low, high = corners.min(axis=0) - room, corners.max(axis=0) + room
    return Bbox.from_extents(*low, *high)


def _cover(box: Bbox, taken: list[Bbox]) -> float:
    """Return how many pixels of a box are taken already."""
    from matplotlib.transforms import Bbox

    shared = [Bbox.intersection(box, other) for other in taken]
    return sum(part.width * part.height for part in shared if part is not None)


def _outside(box: Bbox, axes: Axes) -> float:
    """Return how many pixels of a box lie left or right of, below or above the axes."""
    from matplotlib.transforms import Bbox

    inside = Bbox.intersection(box, axes.get_window_extent())
    area = 0.0 if inside is None else inside.width * inside.height
    return box.width * box.height - area
