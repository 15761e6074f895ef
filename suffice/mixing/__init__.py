"""How values are mixed along the sequence before the kernel: one file per choice."""

from suffice.mixing.alignment import Alignment, AlignmentMap
from suffice.mixing.base import Mixing, Rows
from suffice.mixing.no_mixing import NoMixing

__all__ = ["Alignment", "AlignmentMap", "Mixing", "NoMixing", "Rows"]
