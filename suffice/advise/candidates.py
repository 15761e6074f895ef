"""The compositions that the adviser chooses from, and what each needs in closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from suffice.advise.request import Base
from suffice.cost import Cost
from suffice.errors import ConfigError, unknown
from suffice.grammar import parse_term
from suffice.layers.inputs import check_memory
from suffice.layers.packed import DEFAULT
from suffice.measure.edge.shapes import attended_positions
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.config import check_crosses
from suffice.models.configurations import layers
from suffice.models.lm import SkipInit
from suffice.patterns import Causal, Full, Global, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.recipes.recipe import build_model
from suffice.spec import AttentionSpec

STANDARD = "standard"
BITS = {"memory": (8, 4), "weights": (16, 8, 4)}
CHANGES = ("kv", "window", "sinks", "full", "softmax", "memory", "weights")


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A published mechanism, and what is changed in it.

    Written as the mechanism and its changes, joined by "+".

    Args:
        mechanism: a preset, see `suffice.presets.PRESETS`.
        kv: key/value heads.
        window: keys at a distance below it are attended to, the query's own included.
        sinks: first positions that are attended to beside the window. Where text is written, the
            memory keeps them, and the model was trained to attend to everything.
        full: n = every n-th layer has no window.
        softmax: n = every n-th layer is standard attention instead of the mechanism.
        memory: bits of a cached number while writing.
        weights: bits of a weight.

    Raises:
        ConfigError: for an unknown mechanism, or changes that do not go together.

    Example:
        >>> composition = Composition.parse("efficient+window:512+memory:8")
        >>> composition.window, composition.name
        (512, 'efficient+window:512+memory:8')
    """

    mechanism: str
    kv: int | None = None
    window: int | None = None
    sinks: int | None = None
    full: int | None = None
    softmax: int | None = None
    memory: int | None = None
    weights: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in PRESETS:
            raise unknown("mechanism", self.mechanism, PRESETS)
        for name, number in self.changes.items():
            if name in BITS and number not in BITS[name]:
                legal = " or ".join(map(str, BITS[name]))
                raise ConfigError(f"{name}:{number} in {self.name}: give {legal} bits.")
            if number < 1:
                raise ConfigError(f"{name}:{number} in {self.name}: give at least 1.")
            if name in ("sinks", "full") and not self.window:
                raise ConfigError(f"{self.name}: {name} goes with a window; add such as window:64.")

    @classmethod
    def parse(cls, text: str) -> Composition:
        """Return the composition of a name.

        Raises:
            ConfigError: for a text that is no such name.
        """
        mechanism, *parts = (part.strip() for part in text.split("+"))
        changes: dict[str, int | None] = {}
        for part in parts:
            term = parse_term(part, [f"{name}:N" for name in CHANGES], kind="change", where=text)
            if term.name in changes:
                raise ConfigError(f"{part!r} in {text!r} changes {term.name} again; give it once.")
            changes[term.name] = term.number
        return cls(mechanism=mechanism, **changes)

    @property
    def name(self) -> str:
        """The name that `parse` reads."""
        return "+".join([self.mechanism, *(f"{name}:{n}" for name, n in self.changes.items())])

    @property
    def changes(self) -> dict[str, int]:
        """What is changed in the mechanism, by name."""
        values = {name: getattr(self, name) for name in CHANGES}
        return {name: number for name, number in values.items() if number is not None}

    def specs(self, base: Base) -> list[AttentionSpec]:
        """Return the attention of each layer: of a translator its encoder's, decoder's, cross.

        Raises:
            ConfigError: where the task or the sizes have no such attention, in the words of the
                rule that says so.
        """
        if self.memory is not None and not base.writes:
            raise ConfigError(
                f"memory:{self.memory}: {base.task} writes no tokens and has no KV cache."
            )
        for name in ("full", "softmax"):
            every = getattr(self, name)
            if every is not None and (base.task == "translate" or every > base.depth):
                raise ConfigError(f"{name}:{every}: none of the {base.depth} layers would be one.")
        if self.sinks and self.full and base.writes:
            raise ConfigError(
                f"sinks:{self.sinks} beside full:{self.full}: one memory serves all layers, and it "
                "would drop what the full ones attend to."
            )
        return list(_specs(replace(self, memory=None, weights=None), base))

    def memory_for(self, base: Base) -> Memory:
        """Return the memory to write with: it drops what no layer attends to again.

        Raises:
            ConfigError: as `specs`, or where a layer cannot stream with such a memory.
        """
        if not base.writes:
            return Dynamic()
        specs = [spec for spec in decoder_specs(self.specs(base), base) if spec.kernel.weighs_pairs]
        reaches = [spec.pattern.reach for spec in specs]
        memory: Memory = Dynamic()
        if specs and self.sinks:
            memory = Rolling(self.window, sinks=self.sinks)
        elif specs and None not in reaches:
            memory = Rolling(max(reaches))
        if self.memory is not None:
            if not specs:
                raise ConfigError(
                    f"memory:{self.memory}: {self.mechanism} keeps sums of a fixed size and caches "
                    "no tokens."
                )
            memory = Quantised(memory, bits=self.memory)
        for spec in specs:
            check_memory(spec, memory)
        return memory

    def build(self, base: Base) -> Any:
        """Return a fresh model with this attention; weights are not packed.

        Raises:
            ConfigError: as `specs`.
        """
        return build_model(base.config, self.specs(base))


def decoder_specs(specs: list[AttentionSpec], base: Base) -> list[AttentionSpec]:
    """Return the layers that have a KV cache while writing."""
    if not isinstance(base.config, TranslatorConfig):
        return specs
    first = base.config.encoder_depth
    return specs[first : first + base.config.decoder_depth]


@lru_cache(maxsize=1024)
def _specs(composition: Composition, base: Base) -> tuple[AttentionSpec, ...]:
    """Return the attention of each layer; many compositions differ only in bits."""
    config, one = base.config, composition
    if isinstance(config, LMConfig):
        windows = {} if one.sinks else {"window": one.window, "full_every": one.full}
        return tuple(
            layers(
                one.mechanism,
                config,
                base.num_heads,
                position=base.position,
                num_kv_heads=one.kv,
                softmax_every=one.softmax,
                **windows,
            )
        )
    if isinstance(config, TranslatorConfig):
        encoder = _bidirectional(one, base, config.encoder_depth)
        decoder = _scheduled(one, base, config.decoder_depth, causal=True)
        decoder = [replace(spec, pattern=_windowed(one, spec.pattern)) for spec in decoder]
        cross = _scheduled(one, base, config.decoder_depth)
        check_crosses(cross)
        return (*encoder, *decoder, *cross)
    specs = _bidirectional(one, base, config.depth)
    if one.softmax is None:
        return tuple(specs)
    standard = Composition(mechanism=STANDARD, kv=one.kv).specs(base)
    numbered = enumerate(zip(specs, standard, strict=True), start=1)
    return tuple(pair[number % one.softmax == 0] for number, pair in numbered)


def _bidirectional(one: Composition, base: Base, depth: int) -> list[AttentionSpec]:
    every = one.full or depth + 1
    return [
        replace(spec, pattern=_windowed(one, spec.pattern)) if number % every else spec
        for number, spec in enumerate(_scheduled(one, base, depth), start=1)
    ]


def _scheduled(one: Composition, base: Base, depth: int, **options: Any) -> list[AttentionSpec]:
    if takes_length(one.mechanism):
        options["length"] = base.config.length
    specs = schedule(one.mechanism, base.config.d_model, base.num_heads, depth=depth, **options)
    return list(specs) if one.kv is None else [replace(s, num_kv_heads=one.kv) for s in specs]


def _windowed(one: Composition, pattern: Pattern) -> Pattern:
    """Return the pattern with the composition's window; while writing the memory keeps sinks."""
    causal = isinstance(pattern, Causal)
    if one.window is None or (one.sinks and causal):
        return pattern
    window: Pattern = Window(one.window) | Global(one.sinks) if one.sinks else Window(one.window)
    return window if isinstance(pattern, Full) else window & pattern


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
    def identity(self) -> tuple[object, ...]:
        """Equal for candidates that compute the same in the same way."""
        return self.specs, self.memory, self.composition.weights


def candidate(composition: Composition, base: Base) -> Candidate:
    """Return a composition at a base's sizes.

    Raises:
        ConfigError: where the task or the sizes have no such attention, saying why.
    """
    return Candidate(
        composition=composition,
        specs=tuple(composition.specs(base)),
        memory=composition.memory_for(base),
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
        ConfigError: for a name of no composition.
    """
    if names:
        compositions = [Composition.parse(name) for name in dict.fromkeys((STANDARD, *names))]
    else:
        compositions = list(_all_compositions(base))
    legal: list[Candidate] = []
    illegal: dict[str, str] = {}
    for one in compositions:
        if one.weights is not None and not packs:
            if names:
                illegal.setdefault(one.name, f"weights:{one.weights}: packed weights are for CPUs.")
            continue
        try:
            legal.append(candidate(one, base))
        except ConfigError as error:
            illegal.setdefault(one.name, str(error))
    if not names:
        by_identity: dict[object, Candidate] = {}
        for one in legal:
            by_identity.setdefault(one.identity, one)
        legal = list(by_identity.values())
    return legal, illegal


PROJECTIONS = ("standard", "optimised", "efficient", "toeplitz_super")
SINKS, FULL_EVERY, SOFTMAX_EVERY = 4, 6, 4  # of current language models
NARROWEST = 64  # positions of a window; narrower ones can hardly read
PACKED = ((8, None), (4, None), (None, 8), (None, 4), (8, 8), (4, 4))
"""Bits of the memory and of the weights, tried where tokens are written."""


def _all_compositions(base: Base) -> Iterator[Composition]:
    """Yield every composition; some may be illegal, some the same by another name."""
    exact = [Composition(mechanism=name) for name in PRESETS] + list(_combinations(base))
    yield from exact
    if base.writes:
        for one in exact:
            for memory, weights in PACKED:
                yield replace(one, memory=memory, weights=weights)


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
    """Return windows of a quarter and a sixteenth of the input.

    Example:
        >>> _windows(4096), _windows(256), _windows(64)
        ([1024, 256], [64], [])
    """
    sizes = {max(length // part, NARROWEST) for part in (4, 16)}
    return sorted((size for size in sizes if size < length), reverse=True)


ITEMSIZE = 4  # bytes of a float32
SCALE = 2  # bytes of the scale of a group of packed weights


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of one input of the requested length, and work.

    Args:
        weights: of the whole model.
        state: of the KV cache and of sums, behind the input.
        activations: of the widest layer while the input is read at once, no kernel storing pairs.
        work: bytes read for each token where tokens are written, else FLOPs of an input.
    """

    weights: int
    state: int
    activations: int
    work: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.state + self.activations


def needs(candidate: Candidate, base: Base) -> Needs:
    """Return what a candidate needs.

    Example:
        >>> from suffice.advise.candidates import candidate
        >>> from suffice.advise.request import Request, base_of
        >>> base = base_of(Request(task="lm", model="15m", length=1024))
        >>> plain, efficient = (
        ...     needs(candidate(Composition.parse(name), base), base)
        ...     for name in ("standard", "efficient")
        ... )
        >>> efficient.state / plain.state
        1.0
    """
    costs = [_cost(spec, base) for spec in candidate.specs]
    bits = candidate.composition.weights
    parameters = _other_parameters(base) + sum(cost.parameters for cost in costs)
    weights = _packed_bytes(parameters, bits)
    state = 0
    if base.writes:
        state, read = _state_bytes(candidate, base)
        looked_up = isinstance(base.config, LMConfig) and not base.config.tied
        rows = base.config.vocabulary_size if looked_up else 0  # only a token's row is read
        work = weights - _packed_bytes(rows * base.config.d_model, bits) + read
    else:
        work = sum(cost.visible_flops for cost in costs) + 2 * base.length * _mlp_parameters(base)
    maps = 3 if getattr(base.config, "activation", "") == "swiglu" else 2
    attention = max(2 * spec.widths.q + 2 * spec.widths.kv for spec in candidate.specs)
    features = 2 * base.config.d_model + max(maps * base.config.mlp_width, attention)
    activations = ITEMSIZE * base.length * features
    return Needs(weights=weights, state=state, activations=activations, work=work)


@cache
def _cost(spec: AttentionSpec, base: Base) -> Cost:
    # pairs are counted for FLOPs alone, slowly for long inputs; writing does not need them
    return spec.cost(1 if base.writes else base.length)


@cache
def _standard_model(base: Base) -> nn.Module:
    with torch.device("meta"), SkipInit():
        return build_model(base.config, Composition(mechanism=STANDARD).specs(base))


@cache
def _other_parameters(base: Base) -> int:
    """Return the parameters of everything but the attention."""
    specs = Composition(mechanism=STANDARD).specs(base)
    attention = sum(_cost(spec, base).parameters for spec in specs)
    return sum(p.numel() for p in _standard_model(base).parameters()) - attention


@cache
def _mlp_parameters(base: Base) -> int:
    """Return the parameters of the blocks' MLPs: each is multiplied once for each token."""
    return sum(p.numel() for block in _standard_model(base).blocks for p in block.mlp.parameters())


def _packed_bytes(parameters: int, bits: int | None) -> int:
    if bits is None:
        return parameters * ITEMSIZE
    scales = SCALE * parameters // DEFAULT[bits] if bits in DEFAULT else 0
    return parameters * bits // 8 + scales


def _state_bytes(candidate: Candidate, base: Base) -> tuple[int, int]:
    """Return the bytes that are kept behind an input, and those that a token reads of them."""
    kept = read = 0
    for spec, count in Counter(decoder_specs(list(candidate.specs), base)).items():
        layer_kept, layer_read = _layer_bytes(spec, candidate.memory, base.length)
        kept, read = kept + count * layer_kept, read + count * layer_read
    if isinstance(base.config, TranslatorConfig):
        cross = candidate.specs[base.config.encoder_depth + base.config.decoder_depth :]
        learned = [spec for spec in cross if spec.encoder.learns_keys]
        source = sum(spec.state_bytes(base.length) for spec in learned)
        if len(learned) < len(cross):  # the others read the encoder's output itself
            source += ITEMSIZE * base.length * base.config.d_model
        kept, read = kept + source, read + source
    return kept, read


@lru_cache(maxsize=4096)
def _layer_bytes(spec: AttentionSpec, memory: Memory, length: int) -> tuple[int, int]:
    attended = attended_positions(spec, memory, length)
    return spec.state_bytes(length, memory), spec.state_bytes(attended, memory)
