"""Mixing of the values along the sequence, before the kernel."""

from suffice.mixing.alignments import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    ToeplitzAlignment,
)
from suffice.mixing.base import Mixing, NoMixing, RowLayout
from suffice.mixing.low_rank import LowRank
from suffice.mixing.value_map import ValueMap

__all__ = [
    "Alignment",
    "BandedAlignment",
    "BlockAlignment",
    "LowRank",
    "Mixing",
    "NoMixing",
    "RowLayout",
    "ToeplitzAlignment",
    "ValueMap",
]
