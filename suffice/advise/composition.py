"""Compositions: published mechanisms with changes, such as "efficient+window:512+memory:8"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from suffice.advise.request import Base
from suffice.errors import ConfigError, unknown
from suffice.grammar import parse_term
from suffice.layers.inputs import check_memory
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.config import check_crosses
from suffice.models.configurations import layers
from suffice.models.kinds import build_model
from suffice.patterns import Causal, Full, Global, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec

STANDARD = "standard"
BITS = {"memory": (8, 4), "weights": (16, 8, 4)}
CHANGES = ("kv", "window", "sinks", "full", "softmax", "memory", "weights")


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A published mechanism and its changes, written joined by "+".

    Args:
        mechanism: a preset, see `suffice.presets.PRESETS`.
        kv: key/value heads.
        window: keys that a query attends to, its own position included.
        sinks: first positions that are attended to beside the window. Where text is written, the
            KV cache keeps them, and the model was trained to attend to everything.
        full: n = every n-th layer has no window.
        softmax: n = every n-th layer is standard attention instead of the mechanism.
        memory: bits of a number in the KV cache.
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
        """Return the composition of a name; raises `ConfigError` for a text that is none."""
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
        """The changes by name."""
        values = {name: getattr(self, name) for name in CHANGES}
        return {name: number for name, number in values.items() if number is not None}

    def specs(self, base: Base) -> list[AttentionSpec]:
        """Return the spec of each layer: for a translator encoder, decoder, cross-attention.

        Raises:
            ConfigError: where the task or the sizes have no such attention.
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
        """Return the cache policy for writing: it drops what no layer attends to again.

        Raises:
            ConfigError: as `specs`, or where a layer cannot stream with such a cache.
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
        """Return a new model with this attention, its weights not packed."""
        return build_model(base.config, self.specs(base))


def decoder_specs(specs: Sequence[AttentionSpec], base: Base) -> Sequence[AttentionSpec]:
    """Return the specs of the layers that have a growing KV cache."""
    if not isinstance(base.config, TranslatorConfig):
        return specs
    first = base.config.encoder_depth
    return specs[first : first + base.config.decoder_depth]


@lru_cache(maxsize=1024)
def _specs(composition: Composition, base: Base) -> tuple[AttentionSpec, ...]:
    config, mechanism = base.config, composition.mechanism
    if isinstance(config, LMConfig):
        windows = {"window": composition.window, "full_every": composition.full}
        return tuple(
            layers(
                mechanism,
                config,
                base.num_heads,
                position=base.position,
                num_kv_heads=composition.kv,
                softmax_every=composition.softmax,
                **({} if composition.sinks else windows),
            )
        )
    if isinstance(config, TranslatorConfig):
        encoder = _windowed(composition, base, config.encoder_depth)
        decoder = _windowed(composition, base, config.decoder_depth, causal=True)
        cross = _unwindowed(composition, base, config.decoder_depth)
        check_crosses(cross)
        return (*encoder, *decoder, *cross)
    specs = _windowed(composition, base, config.depth)
    if (every := composition.softmax) is not None:
        standard = Composition(mechanism=STANDARD, kv=composition.kv).specs(base)
        specs[every - 1 :: every] = standard[every - 1 :: every]
    return tuple(specs)


def _unwindowed(
    composition: Composition, base: Base, depth: int, **options: Any
) -> list[AttentionSpec]:
    if takes_length(composition.mechanism):
        options["length"] = base.config.length
    d_model, heads = base.config.d_model, base.num_heads
    specs = schedule(composition.mechanism, d_model, heads, depth=depth, **options)
    if composition.kv is not None:
        specs = [replace(spec, num_kv_heads=composition.kv) for spec in specs]
    return list(specs)


def _windowed(
    composition: Composition, base: Base, depth: int, **options: Any
) -> list[AttentionSpec]:
    """Return specs with the window; where a causal layer writes, its cache keeps the sinks."""
    specs = _unwindowed(composition, base, depth, **options)
    if composition.window is None:
        return specs
    window: Pattern = Window(composition.window)
    if composition.sinks:
        window = window | Global(composition.sinks)
    every = composition.full or depth + 1
    for number, spec in enumerate(specs, start=1):
        windowed_by_cache = composition.sinks and isinstance(spec.pattern, Causal)
        if number % every and not windowed_by_cache:
            pattern = window if isinstance(spec.pattern, Full) else window & spec.pattern
            specs[number - 1] = replace(spec, pattern=pattern)
    return specs


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A composition at a model's sizes: the spec of each layer, and the cache policy."""

    composition: Composition
    specs: tuple[AttentionSpec, ...]
    memory: Memory

    @property
    def name(self) -> str:
        """The name of the composition."""
        return self.composition.name

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for candidates that compute the same thing in the same way."""
        return self.specs, self.memory, self.composition.weights


def candidate(composition: Composition, base: Base) -> Candidate:
    """Return a composition at a model's sizes; raises `ConfigError` where it is not legal."""
    return Candidate(
        composition=composition,
        specs=tuple(composition.specs(base)),
        memory=composition.memory_for(base),
    )
