"""The compositions that the adviser chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from suffice.advise.request import Base
from suffice.errors import ConfigError
from suffice.memory import Memory
from suffice.models.composition import STANDARD, Composition
from suffice.presets import PRESETS
from suffice.spec import AttentionSpec

PROJECTIONS = ("standard", "optimised", "efficient", "toeplitz_super")
SINKS, FULL_EVERY, SOFTMAX_EVERY = 4, 6, 4  # as in current language models
NARROWEST = 64  # positions of a window
PACKED = ((8, None), (4, None), (None, 8), (None, 4), (8, 8), (4, 4))
"""Bits of the KV cache and of the weights, tried where tokens are written."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A composition at a model's sizes: the spec of each layer, and the cache policy."""

    composition: Composition
    specs: tuple[AttentionSpec, ...]
    memory: Memory

    @classmethod
    def of(cls, composition: Composition, base: Base) -> Candidate:
        """Return a composition at a model's sizes; raises `ConfigError` where it is not legal."""
        specs, memory = base.specs(composition), base.memory_for(composition)
        return cls(composition=composition, specs=tuple(specs), memory=memory)

    @property
    def name(self) -> str:
        """The name of the composition."""
        return self.composition.name

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for candidates that compute the same thing in the same way."""
        return self.specs, self.memory, self.composition.weights


def candidates(
    base: Base, names: tuple[str, ...] = (), *, packs: bool = True
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the legal candidates, Standard first, and by name why the others are illegal.

    Without names these are all there are, each computation once. `packs` says whether weights can
    be packed into few bits on this device.
    """
    if names:
        compositions = [Composition.parse(name) for name in dict.fromkeys((STANDARD, *names))]
    else:
        compositions = list(_all_compositions(base))
    legal: dict[object, Candidate] = {}
    illegal: dict[str, str] = {}
    for composition in compositions:
        name, weights = composition.name, composition.weights
        if weights is not None and not packs:
            if names:
                illegal.setdefault(name, f"weights:{weights}: packed weights are for CPUs.")
            continue
        try:
            new = Candidate.of(composition, base)
        except ConfigError as error:
            illegal.setdefault(name, str(error))
        else:
            legal.setdefault(name if names else new.identity, new)
    return list(legal.values()), illegal


def _all_compositions(base: Base) -> Iterator[Composition]:
    """Yield every composition; some are illegal, some equal others under another name."""
    unpacked = [Composition(mechanism=name) for name in PRESETS] + list(_combinations(base))
    yield from unpacked
    if base.writes:
        for composition in unpacked:
            for memory, weights in PACKED:
                yield replace(composition, memory=memory, weights=weights)


def _combinations(base: Base) -> Iterator[Composition]:
    """Yield projections with shared heads and windows, and hybrids of two kernels."""
    heads, alternates = base.num_heads, base.task != "translate"
    parts = {heads // part for part in (2, 4) if heads % part == 0} | {1}
    kv_heads = (None, *sorted(parts - {heads}, reverse=True))
    for mechanism in PROJECTIONS:
        for kv in kv_heads:
            plain = Composition(mechanism=mechanism, kv=kv)
            yield plain
            for window in _windows(base.length):
                windowed = replace(plain, window=window)
                yield windowed
                yield replace(windowed, sinks=SINKS)
                if alternates and base.depth >= FULL_EVERY:
                    yield replace(windowed, full=FULL_EVERY)
    if alternates and base.depth >= SOFTMAX_EVERY:
        for kv in kv_heads:
            yield Composition(mechanism="linear", softmax=SOFTMAX_EVERY, kv=kv)


def _windows(length: int) -> list[int]:
    """Return windows of a quarter and a sixteenth of the input, the wider first."""
    sizes = {max(length // part, NARROWEST) for part in (4, 16)}
    return sorted((size for size in sizes if size < length), reverse=True)
