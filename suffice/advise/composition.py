"""Attention by a name that says how it is composed: "efficient+window:512+memory:8"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from suffice.advise.base import Base
from suffice.errors import ConfigError, unknown
from suffice.layers.arguments import check_memory
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.configurations import layers
from suffice.models.stack import check_crosses
from suffice.patterns import Causal, Full, Global, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.recipes.attention import built
from suffice.spec import AttentionSpec

PART = re.compile(r"([a-z]+):(\d{1,9})")
BITS = {"memory": (8, 4), "weights": (16, 8, 4)}


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A published mechanism, and what is changed in it.

    Written as the mechanism and its changes, joined by "+".

    Args:
        mechanism: a preset, see `suffice.presets.PRESETS`.
        kv: key/value heads.
        window: positions at a distance below it are seen, the own included.
        sinks: first positions that are seen beside the window. Where text is written they are
            kept by the memory of a model that was trained to see everything.
        full: n = every n-th layer sees everything instead of a window.
        softmax: n = every n-th layer is standard attention instead of the mechanism.
        memory: bits of a number that is kept while writing.
        weights: bits of a weight.

    Raises:
        ConfigError: for an unknown mechanism, or changes that do not go together.

    Example:
        >>> one = Composition.parse("efficient+window:512+memory:8")
        >>> one.window, one.name
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
        for name, legal in BITS.items():
            if getattr(self, name) not in (None, *legal):
                told = " or ".join(map(str, legal))
                raise ConfigError(f"{name}:{getattr(self, name)} in {self.name}: give {told} bits.")
        numbers = {n: getattr(self, n) for n in ("kv", "window", "sinks", "full", "softmax")}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ConfigError(f"{name}:{number} in {self.name}: give at least 1.")
        for name in ("sinks", "full"):
            if numbers[name] and not self.window:
                raise ConfigError(f"{self.name}: {name} goes with a window; add such as window:64.")

    @classmethod
    def parse(cls, name: str) -> Composition:
        """Return what a name says.

        Raises:
            ConfigError: for words that are none.
        """
        mechanism, *parts = (word.strip() for word in name.split("+"))
        legal = [f.name for f in fields(cls) if f.name != "mechanism"]
        changes: dict[str, int] = {}
        for part in parts:
            found = PART.fullmatch(part)
            if not found or found[1] not in legal or found[1] in changes:
                raise ConfigError(
                    f"{part!r} in {name!r} is no change of a mechanism; write each once, as NAME:N "
                    f"with one of {', '.join(legal)}."
                )
            changes[found[1]] = int(found[2])
        return cls(mechanism=mechanism, **changes)

    @property
    def name(self) -> str:
        """The name that `parse` reads."""
        return "+".join([self.mechanism, *(f"{name}:{n}" for name, n in self.changes.items())])

    @property
    def changes(self) -> dict[str, int]:
        """What is changed in the mechanism, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "mechanism"}
        return {name: number for name, number in found.items() if number is not None}

    def specs(self, base: Base) -> list[AttentionSpec]:
        """Return the attention of each layer: of a translator its encoder's, decoder's, cross.

        Raises:
            ConfigError: where the task or the sizes have no such attention, in the words of the
                rule that says so.
        """
        self._refuse(base)
        return list(_attention(replace(self, memory=None, weights=None), base))

    def _made(self, base: Base) -> list[AttentionSpec]:
        """Make what `specs` returns."""
        config = base.config
        if isinstance(config, LMConfig):
            return self._of_language_model(base)
        if not isinstance(config, TranslatorConfig):
            return self._opened(self._two_sided(base, config.depth), base)
        encoder = self._two_sided(base, config.encoder_depth)
        decoder = self._shared(self._plain(base, config.decoder_depth, causal=True))
        decoder = [replace(one, pattern=self._near(one.pattern)) for one in decoder]
        cross = self._shared(self._plain(base, config.decoder_depth))
        check_crosses(cross)
        return [*encoder, *decoder, *cross]

    def kept(self, base: Base) -> Memory:
        """Return the memory to write with: what the layers never read again is not kept.

        Raises:
            ConfigError: as `specs`, or where a layer cannot stream with such a memory.
        """
        if not base.writes:
            return Dynamic()
        layers = [one for one in writing(self.specs(base), base) if one.kernel.weighs_pairs]
        reaches = [one.pattern.reach for one in layers]
        kept: Memory = Dynamic()
        if layers and self.sinks:
            kept = Rolling(self.window, sinks=self.sinks)
        elif layers and None not in reaches:
            kept = Rolling(max(reaches))
        if self.memory is not None:
            if not layers:
                raise ConfigError(
                    f"memory:{self.memory}: {self.mechanism} keeps sums of one size and no numbers "
                    "for each token."
                )
            kept = Quantised(kept, bits=self.memory)
        for one in layers:
            check_memory(one, kept)
        return kept

    def build(self, base: Base) -> Any:
        """Return a fresh model with this attention; weights are not packed.

        Raises:
            ConfigError: as `specs`.
        """
        return built(base.config, self.specs(base))

    def _refuse(self, base: Base) -> None:
        """Refuse changes that the task or the depth gives no meaning."""
        if self.memory is not None and not base.writes:
            raise ConfigError(
                f"memory:{self.memory}: {base.task} keeps nothing, for it writes no tokens."
            )
        for name in ("full", "softmax"):
            every = getattr(self, name)
            if every is not None and (base.task == "translate" or every > base.depth):
                raise ConfigError(f"{name}:{every}: none of the {base.depth} layers would be one.")
        if self.sinks and self.full and base.writes:
            raise ConfigError(
                f"sinks:{self.sinks} beside full:{self.full}: one memory serves all layers, and it "
                "would forget what the full ones read."
            )

    def _of_language_model(self, base: Base) -> list[AttentionSpec]:
        options = {} if self.sinks else {"window": self.window, "full_every": self.full}
        return layers(
            self.mechanism,
            base.config,
            base.num_heads,
            position=base.position,
            num_kv_heads=self.kv,
            softmax_every=self.softmax,
            **options,
        )

    def _two_sided(self, base: Base, depth: int) -> list[AttentionSpec]:
        specs = self._shared(self._plain(base, depth))
        every = self.full or depth + 1
        return [
            one if number % every == 0 else replace(one, pattern=self._near(one.pattern))
            for number, one in enumerate(specs, start=1)
        ]

    def _plain(self, base: Base, depth: int, **options: Any) -> list[AttentionSpec]:
        if takes_length(self.mechanism):
            options["length"] = base.config.length
        sizes = (base.config.d_model, base.num_heads)
        return schedule(self.mechanism, *sizes, depth=depth, **options)

    def _shared(self, specs: Sequence[AttentionSpec]) -> list[AttentionSpec]:
        if self.kv is None:
            return list(specs)
        return [replace(one, num_kv_heads=self.kv) for one in specs]

    def _near(self, pattern: Pattern) -> Pattern:
        if self.window is None:
            return pattern
        near: Pattern = Window(self.window)
        causal = isinstance(pattern, Causal)
        if self.sinks and not causal:  # while writing the memory keeps them
            near = near | Global(self.sinks)
        if self.sinks and causal:
            return pattern
        return near if isinstance(pattern, Full) else near & pattern

    def _opened(self, specs: list[AttentionSpec], base: Base) -> list[AttentionSpec]:
        """Put standard attention into every so many layers."""
        if self.softmax is None:
            return specs
        plain = Composition(mechanism="standard", kv=self.kv).specs(base)
        numbered = enumerate(zip(specs, plain, strict=True), start=1)
        return [two if number % self.softmax == 0 else one for number, (one, two) in numbered]


def writing(specs: list[AttentionSpec], base: Base) -> list[AttentionSpec]:
    """Return the layers that keep something while writing."""
    if not isinstance(base.config, TranslatorConfig):
        return specs
    first = base.config.encoder_depth
    return specs[first : first + base.config.decoder_depth]


@lru_cache(maxsize=1024)
def _attention(one: Composition, base: Base) -> tuple[AttentionSpec, ...]:
    """Return the attention of each layer; many compositions differ in what is packed alone."""
    return tuple(one._made(base))
