"""Every combination of the axes' own samples."""

from __future__ import annotations

from itertools import product

from suffice.axis import Axis
from suffice.kernels import Kernel
from suffice.mixing import Mixing
from suffice.patterns import Pattern
from suffice.positions import Position
from suffice.projections import Projections

LENGTH = 5
NUM_HEADS = 4
D_MODEL = 8


def samples(family: type[Axis]) -> tuple[Axis, ...]:
    """The samples of each of the library's own values of a family."""
    own = [v for v in family.table.values() if v.__module__.startswith("suffice.")]
    return tuple(sample for value in own for sample in value.samples())


PATTERNS, PROJECTIONS, MIXINGS = samples(Pattern), samples(Projections), samples(Mixing)
KERNELS, POSITIONS = samples(Kernel), samples(Position)
KV_HEADS = (1, 2, 4)

COMPOSITIONS = list(product(PATTERNS, PROJECTIONS, MIXINGS))
REST = list(product(KERNELS, KV_HEADS, POSITIONS, (True, False)))


def spelled(values) -> str:
    """An id such as Causal-Efficient-Alignment."""
    return "-".join(map(repr, values)).replace(" ", "")
