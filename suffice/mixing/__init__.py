"""How values are mixed along the sequence before the kernel: one file per choice."""

from suffice.mixing.alignments import (
    Alignment,
    AlignmentMap,
    BandedAlignment,
    BandedMap,
    BlockAlignment,
    BlockMap,
    ToeplitzAlignment,
    ToeplitzMap,
)
from suffice.mixing.base import Mixing, NoMixing, RowLayout
from suffice.mixing.low_rank import LowRank, LowRankMap
from suffice.mixing.value_map import ValueMap

__all__ = [
    "Alignment",
    "AlignmentMap",
    "BandedAlignment",
    "BandedMap",
    "BlockAlignment",
    "BlockMap",
    "LowRank",
    "LowRankMap",
    "Mixing",
    "NoMixing",
    "RowLayout",
    "ToeplitzAlignment",
    "ToeplitzMap",
    "ValueMap",
]
