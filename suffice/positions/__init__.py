"""How positions enter a layer: one file per choice."""

from suffice.positions.alibi import Alibi
from suffice.positions.base import Position
from suffice.positions.no_position import NoPosition
from suffice.positions.rope import Rope
from suffice.positions.scaling import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Scaling,
    YarnScaling,
)

__all__ = [
    "Alibi",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "NoPosition",
    "Position",
    "Rope",
    "Scaling",
    "YarnScaling",
]
