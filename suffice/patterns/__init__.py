"""Patterns: the keys that a query may attend to, combined with `&` and `|`."""

from suffice.patterns.base import Band, Layout, Pattern
from suffice.patterns.combined import And, Block, Or, PerHead
from suffice.patterns.grid import Neighbourhood, ShiftedWindows
from suffice.patterns.local import Causal, Dilated, Full, Window
from suffice.patterns.sparse import Fixed, Global, Random, Strided

__all__ = [
    "And",
    "Band",
    "Block",
    "Causal",
    "Dilated",
    "Fixed",
    "Full",
    "Global",
    "Layout",
    "Neighbourhood",
    "Or",
    "Pattern",
    "PerHead",
    "Random",
    "ShiftedWindows",
    "Strided",
    "Window",
]
