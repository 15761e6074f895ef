"""How positions enter a layer: one file per choice."""

from suffice.positions.base import Position
from suffice.positions.no_position import NoPosition
from suffice.positions.rope import Rope

__all__ = ["NoPosition", "Position", "Rope"]
