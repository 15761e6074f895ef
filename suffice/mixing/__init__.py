"""How values are mixed along the sequence before the kernel: one file per choice."""

from suffice.mixing.alignment import Alignment, AlignmentMap
from suffice.mixing.banded import BandedAlignment, BandedMap
from suffice.mixing.base import Mixing
from suffice.mixing.block import BlockAlignment, BlockMap
from suffice.mixing.low_rank import LowRank, LowRankMap
from suffice.mixing.no_mixing import NoMixing
from suffice.mixing.rows import Rows
from suffice.mixing.toeplitz import ToeplitzAlignment, ToeplitzMap
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
    "Rows",
    "ToeplitzAlignment",
    "ToeplitzMap",
    "ValueMap",
]
