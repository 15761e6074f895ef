"""One colour, shade and letter for each part of a drawing.

Window, random, global and the other kinds of pattern look the same in every drawing. The colours
are apart for the common colour blindnesses, and each has a lightness of its own, so that they
are apart in grey as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffice.view.parts import Part

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
class Look:
    """How a part is drawn.

    Args:
        colour: "#rrggbb".
        shade: one character of a drawing in blocks.
        letter: one character of a drawing in plain letters.
    """

    colour: str
    shade: str
    letter: str


def looks(parts: Sequence[Part]) -> tuple[Look, ...]:
    """Give each part its look, all different as long as there are enough.

    Example:
        >>> [look.letter for look in looks([Part("Window", ""), Part("Wide", "")])]
        ['W', 'i']
    """
    colours: list[str] = []
    shades: list[str] = []
    letters: list[str] = []
    palette = [*FREE, *dict.fromkeys(COLOURS.values())]
    alphabet = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    for part in parts:
        own = [COLOURS[part.kind]] if part.kind in COLOURS else []
        colours.append(_first([*own, *palette], colours))
        shades.append(_first([SHADES.get(part.kind, SOLID), *MORE, *alphabet], shades))
        name = part.kind[0].upper() + part.kind[1:]
        letters.append(_first([*filter(str.isascii, name), *alphabet], letters))
    return tuple(map(Look, colours, shades, letters))


def _first(wanted: Sequence[str], taken: Sequence[str]) -> str:
    """Return the first that is free, the least used one if none is."""
    return min(wanted, key=taken.count)
