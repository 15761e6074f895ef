"""Drawings of who sees whom (patterns) and of what is computed (flows)."""

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
from suffice.view.flow import Flow, flow, flow_svg, flow_text
from suffice.view.picture import picture, write
from suffice.view.text import lines, text

__all__ = [
    "LONGEST",
    "Drawing",
    "Flow",
    "Panel",
    "Part",
    "brief",
    "draw",
    "drawing_of",
    "expression",
    "flow",
    "flow_svg",
    "flow_text",
    "instead",
    "lines",
    "picture",
    "text",
    "write",
]
