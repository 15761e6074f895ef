"""Drawings of attention patterns and of a layer's computation (flow)."""

from suffice.view.drawing import (
    MAX_POSITIONS,
    Drawing,
    Panel,
    Part,
    brief,
    draw,
    drawing_of,
    expression,
    instead,
    lines,
    text,
)
from suffice.view.flow import Flow, flow, flow_svg, flow_text
from suffice.view.picture import picture, write

__all__ = [
    "MAX_POSITIONS",
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
