"""The compositions that the adviser chooses from, and what each needs in closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch

from suffice.advise.request import Base
from suffice.cost import Cost
from suffice.errors import ConfigError
from suffice.layers.block import GATES
from suffice.layers.packed import DEFAULT
from suffice.memory import Memory
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.composition import STANDARD, Composition
from suffice.models.kinds import build_model
from suffice.models.lm import SkipInit
from suffice.presets import PRESETS
from suffice.spec import AttentionSpec

PROJECTIONS = ("standard", "optimised", "efficient", "toeplitz_super")
SINKS, FULL_EVERY, SOFTMAX_EVERY = 4, 6, 4  # as in current language models
NARROWEST = 64  # positions of a window
PACKED = ((8, None), (4, None), (None, 8), (None, 4), (8, 8), (4, 4))
"""Bits of the KV cache and of the weights, tried where tokens are written."""
ITEMSIZE = 4  # bytes of a float32
SCALE = 2  # bytes of the scale of a group of packed weights


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


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes and work of one input of the requested length.

    Args:
        weights: bytes of the whole model.
        state: bytes of KV caches and sums after the input.
        activations: bytes of the widest layer while the input is read at once, scores not stored.
        work: bytes read for each token where tokens are written, else FLOPs of an input.
    """

    weights: int
    state: int
    activations: int
    work: int

    @property
    def total(self) -> int:
        """Weights, state and activations, bytes."""
        return self.weights + self.state + self.activations


def needs(candidate: Candidate, base: Base) -> Needs:
    """Return the bytes and the work of a candidate, in closed form."""
    costs = [_cost(spec, base) for spec in candidate.specs]
    bits = candidate.composition.weights
    others, mlp = _fixed_parameters(base)
    weights = _packed_bytes(others + sum(cost.parameters for cost in costs), bits)
    state = 0
    if base.writes:
        state, read = _state_bytes(candidate, base)
        looked_up = isinstance(base.config, LMConfig) and not base.config.tied
        rows = base.config.vocabulary_size if looked_up else 0  # only a token's row is read
        work = weights - _packed_bytes(rows * base.config.d_model, bits) + read
    else:
        work = sum(cost.visible_flops for cost in costs) + 2 * base.length * mlp
    maps = 3 if getattr(base.config, "activation", "") in GATES else 2
    attention = max(2 * spec.widths.q + 2 * spec.widths.kv for spec in candidate.specs)
    features = 2 * base.config.d_model + max(maps * base.config.mlp_width, attention)
    activations = ITEMSIZE * base.length * features
    return Needs(weights=weights, state=state, activations=activations, work=work)


@cache
def _cost(spec: AttentionSpec, base: Base) -> Cost:
    # FLOPs, whose pairs are slow to count for long inputs, are not needed where tokens are written
    return spec.cost(1 if base.writes else base.length)


@cache
def _fixed_parameters(base: Base) -> tuple[int, int]:
    """Return the parameters of everything but the attention, and those of the MLPs alone."""
    specs = base.specs(Composition(mechanism=STANDARD))
    with torch.device("meta"), SkipInit():
        model = build_model(base.config, specs)
    attention = sum(_cost(spec, base).parameters for spec in specs)
    mlp = sum(p.numel() for name, p in model.named_parameters() if ".mlp." in name)
    return sum(p.numel() for p in model.parameters()) - attention, mlp


def _packed_bytes(parameters: int, bits: int | None) -> int:
    if bits is None:
        return parameters * ITEMSIZE
    scales = SCALE * parameters // DEFAULT[bits] if bits in DEFAULT else 0
    return parameters * bits // 8 + scales


def _state_bytes(candidate: Candidate, base: Base) -> tuple[int, int]:
    """Return the bytes stored after an input, and those of them that the next token reads."""
    stored = read = 0
    for spec, count in Counter(base.decoder(candidate.specs)).items():
        layer_stored, layer_read = _layer_bytes(spec, candidate.memory, base.length)
        stored, read = stored + count * layer_stored, read + count * layer_read
    if isinstance(base.config, TranslatorConfig):
        cross = candidate.specs[base.config.encoder_depth + base.config.decoder_depth :]
        learned = [spec for spec in cross if spec.encoder.learns_keys]
        source = sum(spec.state_bytes(base.length) for spec in learned)
        if len(learned) < len(cross):  # the others read the encoder's output itself
            source += ITEMSIZE * base.length * base.config.d_model
        stored, read = stored + source, read + source
    return stored, read


@lru_cache(maxsize=4096)
def _layer_bytes(spec: AttentionSpec, memory: Memory, length: int) -> tuple[int, int]:
    attended = spec.attended_positions(length, memory)
    read = replace(spec, shares=None)  # a layer that shares reads as much, and stores nothing
    return spec.state_bytes(length, memory), read.state_bytes(attended, memory)
