"""Every composition that the adviser chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from suffice.advise.base import Base
from suffice.advise.composition import Composition
from suffice.errors import ConfigError
from suffice.memory import Memory
from suffice.presets import PRESETS
from suffice.spec import AttentionSpec

PROJECTIONS = ("standard", "optimised", "efficient", "toeplitz_super")
SINKS, FULL_EVERY, SOFTMAX_EVERY = 4, 6, 4  # of current language models
NARROWEST = 64  # positions of a window; what sees less can hardly read
PACKED = ((8, None), (4, None), (None, 8), (None, 4), (8, 8), (4, 4))
"""Bits of the memory and of the weights, tried where tokens are written."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A composition at a base's sizes.

    Args:
        composition: which.
        specs: of each layer; of a translator its encoder's, decoder's and those between.
        memory: to write with.
    """

    composition: Composition
    specs: tuple[AttentionSpec, ...]
    memory: Memory

    @property
    def name(self) -> str:
        """The composition's."""
        return self.composition.name

    @property
    def same_as(self) -> tuple[object, ...]:
        """What two candidates share that compute the same in the same way."""
        return self.specs, self.memory, self.composition.weights


def candidate(composition: Composition, base: Base) -> Candidate:
    """Return a composition at a base's sizes.

    Raises:
        ConfigError: where the task or the sizes have no such attention, saying why.
    """
    return Candidate(
        composition=composition,
        specs=tuple(composition.specs(base)),
        memory=composition.kept(base),
    )


def candidates(
    base: Base, names: tuple[str, ...] = (), *, packs: bool = True
) -> tuple[list[Candidate], dict[str, str]]:
    """Return what is legal, Standard first, and why the rest is not, by name.

    Args:
        base: the model.
        names: of compositions to choose from; none = all there are, each computation once.
        packs: whether weights can be packed into few bits where this runs.

    Raises:
        ConfigError: for a name that says no composition.
    """
    if names:
        chosen = [Composition.parse(name) for name in dict.fromkeys(("standard", *names))]
    else:
        chosen = list(_all(base, packs))
    found: list[Candidate] = []
    illegal: dict[str, str] = {}
    for one in chosen:
        if one.weights is not None and not packs:
            illegal.setdefault(one.name, f"weights:{one.weights}: packed weights are for CPUs.")
            continue
        try:
            found.append(candidate(one, base))
        except ConfigError as error:
            illegal.setdefault(one.name, str(error))
    if not names:
        first: dict[object, Candidate] = {}
        for made in found:
            first.setdefault(made.same_as, made)
        found = list(first.values())
    return found, illegal


def _all(base: Base, packs: bool) -> Iterator[Composition]:
    """Give every composition; some of them may be illegal, some the same by another name."""
    whole = [Composition(mechanism=name) for name in PRESETS] + list(_composed(base))
    yield from whole
    if not base.writes:
        return
    for one in whole:
        for memory, weights in PACKED:
            if packs or weights is None:
                yield replace(one, memory=memory, weights=weights)


def _composed(base: Base) -> Iterator[Composition]:
    """Give projections with shared heads and patterns, and hybrids of two kernels."""
    shares = (None, *_shares(base.num_heads))
    for mechanism in PROJECTIONS:
        for kv in shares:
            plain = Composition(mechanism=mechanism, kv=kv)
            yield plain
            for window in _windows(base.length):
                near = replace(plain, window=window)
                yield near
                yield replace(near, sinks=SINKS)
                if base.task != "translate" and base.depth >= FULL_EVERY:
                    yield replace(near, full=FULL_EVERY)
    if base.task != "translate" and base.depth >= SOFTMAX_EVERY:
        for kv in shares:
            yield Composition(mechanism="linear", softmax=SOFTMAX_EVERY, kv=kv)


def _shares(heads: int) -> list[int]:
    """Return numbers of key/value heads below the query heads': a half, a quarter, one."""
    found = {heads // part for part in (2, 4) if heads % part == 0} | {1}
    return sorted(found - {heads}, reverse=True)


def _windows(length: int) -> list[int]:
    """Return windows of a quarter and a sixteenth of the input.

    Example:
        >>> _windows(4096), _windows(256), _windows(64)
        ([1024, 256], [64], [])
    """
    found = {max(length // part, NARROWEST) for part in (4, 16)}
    return sorted((size for size in found if size < length), reverse=True)
