"""Drawings of patterns: queries down, keys across, coloured by the part that allows a pair."""

from suffice.view.drawing import (
    LONGEST,
    Drawing,
    Panel,
    Part,
    brief,
    draw,
    drawing_of,
    expression,
    instead,
)
from suffice.view.picture import picture, write
from suffice.view.text import lines, text

__all__ = [
    "LONGEST",
    "Drawing",
    "Panel",
    "Part",
    "brief",
    "draw",
    "drawing_of",
    "expression",
    "instead",
    "lines",
    "picture",
    "text",
    "write",
]
