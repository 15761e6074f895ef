"""Every combination of the axes' own samples, and a selection that covers their pairs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, combinations, count, product
from typing import NamedTuple

import torch

from suffice import AttentionSpec
from suffice.encoders import Encoder, Norm
from suffice.errors import ConfigError
from suffice.kernels import Kernel
from suffice.mixing import Mixing
from suffice.ops import OPS, AttentionCall
from suffice.past import Past
from suffice.patterns import Pattern
from suffice.positions import Position
from suffice.records import Axis

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
        shortens = not self.composition.mixing.keeps_keys
        return shortens and self.data in ("segments", "both")

    @property
    def ops(self) -> list[str]:
        """The names of the ops that accept the cell."""
        length, mixing = self.composition.length, self.composition.mixing
        plain = self.data == "plain" or not mixing.keeps_keys
        reads = mixing.reads(length)
        problem = AttentionCall.of(self.spec, length, reads, plain=plain, dtype=torch.float64)
        if problem.kernel.recurrent:
            return ["recurrence"]
        return [name for name, op in OPS.items() if not op.refuses(problem)]

    def __str__(self) -> str:
        return f"{self.composition}-bias{self.bias}-{self.data}"


AXES = (PATTERNS, PROJECTIONS, MIXINGS, KERNELS, POSITIONS, KV_HEADS)
COMPOSITIONS = tuple(
    Composition._make(axis[place] for axis, place in zip(AXES, places, strict=True))
    for places in product(*(range(len(axis)) for axis in AXES))
    if sum(places) % 4 == 0
)
"""Every fourth of the product, along the diagonals of its planes, with all pairs and triples."""


@cache
def sorted_out() -> tuple[list[Composition], dict[Composition, str]]:
    """Return the legal compositions, and the others with the sentence that refuses them."""
    legal, refused = [], {}
    for composition in COMPOSITIONS:
        try:
            composition.spec()
        except ConfigError as error:
            refused[composition] = str(error)
        else:
            legal.append(composition)
    return legal, refused


def triple(composition: Composition) -> Hashable:
    """Return the three values that every combination of is run."""
    return composition.pattern, composition.mixing, composition.kernel


def pairs(composition: Composition) -> frozenset[Hashable]:
    """Return the pairs of values of a composition; the samples of the axes are told by identity."""
    return frozenset(combinations(map(id, composition), 2))


def cover(candidates: Sequence[Composition]) -> list[Composition]:
    """Choose candidates that hold every triple and every pair that some candidate holds.

    Of the candidates with one triple the one with the most new pairs is taken, then those whose
    pairs are still missing.
    """
    alike: dict[Hashable, list[tuple[Composition, frozenset]]] = {}
    for candidate in candidates:
        alike.setdefault(triple(candidate), []).append((candidate, pairs(candidate)))
    held: set[Hashable] = set()
    chosen = []

    def take(found: list[tuple[Composition, frozenset]]) -> None:
        candidate, own = max(found, key=lambda one: len(one[1] - held))
        held.update(own)
        chosen.append(candidate)

    for found in alike.values():
        take(found)
    for one in chain.from_iterable(alike.values()):
        if one[1] - held:
            take([one])
    return chosen


def with_data(compositions: Sequence[Composition]) -> Iterator[Cell]:
    """Give each composition a bias and a kind of data, in turn for each of its values.

    Of all kinds the one is taken that the fewest values of the composition have met; kinds that
    a value has still not met at the end get a cell of their own.
    """
    kinds = list(product(DATA, BIASES))
    met: set[Hashable] = set()
    turn = count()

    def news(composition: Composition, kind: tuple[str, bool]) -> set[Hashable]:
        return {(i, value, part) for i, value in enumerate(composition) for part in kind} - met

    def taken(composition: Composition, kind: tuple[str, bool]) -> Cell:
        met.update(news(composition, kind))
        return Cell(composition, kind[1], kind[0])

    for composition in compositions:
        shift = next(turn) % len(kinds)
        rotated = kinds[shift:] + kinds[:shift]
        yield taken(composition, max(rotated, key=lambda kind: len(news(composition, kind))))
    for composition in compositions:
        for kind in kinds:
            if news(composition, kind):
                yield taken(composition, kind)


@cache
def covered() -> list[Composition]:
    """Return the compositions that are run at least once."""
    return cover(sorted_out()[0])


@cache
def cells() -> tuple[Cell, ...]:
    """Return the cells that are run."""
    return tuple(with_data(covered()))
