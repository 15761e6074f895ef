"""Drawings of patterns: queries down, keys across, coloured by the part that allows a pair."""

from suffice.view.drawing import LONGEST, Drawing, Panel, draw
from suffice.view.expression import brief, expression
from suffice.view.mechanism import drawing_of, instead
from suffice.view.parts import Part
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
