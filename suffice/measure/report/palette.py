"""One colour, marker and dash per mechanism, the same in every figure.

The colours are apart for the common colour blindnesses and stand out on white (first value) and
on a dark page (second value). Markers and dashes tell mechanisms apart without any colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COLOURS = (
    ("#3d4451", "#c3cad6"),
    ("#c2700a", "#f0a23c"),
    ("#0072b2", "#56b4e9"),
    ("#a8437e", "#e08fc0"),
    ("#00855f", "#35c79b"),
    ("#b23a12", "#ff7f50"),
    ("#6a51a3", "#a99be0"),
    ("#7a6a00", "#d9c64a"),
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
KNOWN = ("standard", "optimised", "efficient", "super_attention", "gqa", "mqa")

INK = ("#1f2430", "#e6e9ef")
FAINT = ("#5f6775", "#a2aab8")
GRID = ("#d9dde4", "#363d4a")
PAGE = ("#ffffff", "#14171d")
BAND = ("#e6efe9", "#1f332a")


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a mechanism is drawn.

    Args:
        colour: on white, "#rrggbb".
        dark: on a dark page.
        marker: matplotlib's name of the marker.
        dash: matplotlib's line style.
    """

    colour: str
    dark: str
    marker: str
    dash: str | tuple[int, tuple[float, ...]]


def looks(mechanisms: Iterable[str]) -> dict[str, Look]:
    """Give every mechanism its look.

    The mechanisms of the paper always look the same; others take the looks that are left, in
    the order given, and share them when there are too many.

    Example:
        >>> looks(["mine", "standard"])["standard"].marker
        'o'
    """
    names = list(dict.fromkeys(mechanisms))
    places = {name: KNOWN.index(name) for name in names if name in KNOWN}
    free = [place for place in range(len(COLOURS)) if place not in places.values()]
    free = free or list(range(len(COLOURS)))
    for number, name in enumerate(name for name in names if name not in KNOWN):
        places[name] = free[number % len(free)]
    return {name: _look(places[name]) for name in names}


def themed() -> dict[str, str]:
    """Return the colour on a dark page of every colour on a light one."""
    return dict([*COLOURS, INK, FAINT, GRID, PAGE, BAND])


def _look(place: int) -> Look:
    """Put a look together."""
    light, dark = COLOURS[place]
    return Look(colour=light, dark=dark, marker=MARKERS[place], dash=DASHES[place % len(DASHES)])
