"""A selection of the combinations of the axes' own samples that covers their pairs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import pytest
import torch

from suffice import AttentionSpec
from suffice.encoders import Encoder, Norm
from suffice.errors import ConfigError
from suffice.kernels import Kernel
from suffice.memory.past import Past
from suffice.mixing import Mixing
from suffice.ops import OPS, AttentionCall
from suffice.patterns import Pattern
from suffice.positions import Position
from suffice.utils.records import Axis

from .pairwise import Case, pairwise

LENGTH = 9
NUM_HEADS = 4
D_MODEL = 8


def samples(family: type[Axis]) -> tuple[Axis, ...]:
    """The samples of each of the library's own values of a family."""
    own = [v for v in family.table.values() if v.__module__.startswith("suffice.")]
    return tuple(sample for value in own for sample in value.samples())


PATTERNS, PROJECTIONS, MIXINGS = samples(Pattern), samples(Encoder), samples(Mixing)
KERNELS, POSITIONS, PASTS = samples(Kernel), samples(Position), samples(Past)
NORMS = samples(Norm)
KV_HEADS = (1, 2, 4)
BIASES = (True, False)
DATA = ("plain", "valid", "segments", "both")


class Composition(NamedTuple):
    """One value of each axis, and how many key/value heads."""

    pattern: Pattern
    encoder: Encoder
    mixing: Mixing
    kernel: Kernel
    position: Position
    kv_heads: int

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the spec; a pattern made for some number of heads gets that number."""
        return {"d_model": D_MODEL, "num_heads": self.pattern.heads or NUM_HEADS}

    def spec(self, **sizes: int | bool) -> AttentionSpec:
        axes = dict(zip(self._fields[:5], self[:5], strict=True))
        given = {**self.sizes, "num_kv_heads": self.kv_heads, **sizes}
        return AttentionSpec(**given, **axes)

    @property
    def length(self) -> int:
        return min(LENGTH, self.pattern.max_length or LENGTH, self.mixing.max_length or LENGTH)

    def __str__(self) -> str:
        return "-".join(map(repr, self)).replace(" ", "")


@dataclass(frozen=True)
class Cell:
    """What one run computes."""

    composition: Composition
    bias: bool
    data: str

    @cached_property
    def spec(self) -> AttentionSpec:
        return self.composition.spec(bias=self.bias)

    @property
    def refuses_data(self) -> bool:
        """Whether the layer must refuse the data: documents would meet in its keys."""
        return not self.spec.keeps_documents and self.data in ("segments", "both")

    @property
    def ops(self) -> list[str]:
        """The names of the ops that accept the cell."""
        length, mixing = self.composition.length, self.composition.mixing
        plain = self.data == "plain" or not mixing.keeps_keys
        reads = mixing.reads(length)
        problem = AttentionCall.of(self.spec, length, reads, plain=plain, dtype=torch.float64)
        if problem.kernel.lane == "recurrence":
            return ["recurrence"]
        return [name for name, op in OPS.items() if not op.refuses(problem)]

    def __str__(self) -> str:
        return f"{self.composition}-bias{self.bias}-{self.data}"


AXES = dict(
    zip(
        Composition._fields,
        (PATTERNS, PROJECTIONS, MIXINGS, KERNELS, POSITIONS, KV_HEADS),
        strict=True,
    )
)


def composed(case: Case) -> Composition:
    """Return the composition of a case, which holds the places of its values."""
    return Composition(**{name: values[case[name]] for name, values in AXES.items()})


@cache
def is_legal(composition: Composition) -> bool:
    try:
        composition.spec()
    except ConfigError:
        return False
    return True


@cache
def cells() -> tuple[Cell, ...]:
    """Return the cells that are run: every legal pair of values, data and bias among them."""
    places = {name: range(len(values)) for name, values in AXES.items()}
    with pytest.MonkeyPatch.context() as patch:
        # samples have the types of their axes, and asking 130,000 compositions takes half a minute
        patch.setattr("suffice.spec.spec._type_errors", lambda _: ())
        cases = pairwise(
            {**places, "data": DATA, "bias": BIASES}, lambda case: is_legal(composed(case))
        )
    return tuple(Cell(composed(case), case["bias"], case["data"]) for case in cases)


@cache
def refused() -> dict[Composition, str]:
    """Return compositions drawn at random that are illegal, with the sentence that refuses each."""
    draw, sentences = random.Random(0), {}
    for _ in range(2000):
        composition = Composition(*(draw.choice(values) for values in AXES.values()))
        try:
            composition.spec()
        except ConfigError as error:
            sentences[composition] = str(error)
    return sentences
