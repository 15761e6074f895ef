"""Compositions: published mechanisms with changes, such as "efficient+window:512+memory:8"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from suffice.errors import ConfigError, check_known
from suffice.models.config import check_crosses, check_unshared
from suffice.models.configurations import layers
from suffice.models.kinds import Sizes
from suffice.models.lm import LMConfig
from suffice.models.translator import TranslatorConfig
from suffice.patterns import Full, Global, Pattern, Window
from suffice.positions import Position
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec
from suffice.utils.grammar import parse_term

STANDARD = "standard"
BITS = {"memory": (8, 4), "values": (8, 4), "weights": (16, 8, 4)}
CHANGES = ("kv", "window", "sinks", "full", "softmax", "memory", "values", "weights", "draw")
USAGE_CHANGES = ("sinks", "memory", "values", "weights")
"""Changes of how a trained model is run."""


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A published mechanism and its changes, written joined by "+".

    Args:
        mechanism: a preset, see `suffice.presets.PRESETS`.
        kv: key/value heads.
        window: keys that a query attends to, its own position included.
        sinks: first positions that are attended to besides the window. Where text is written, the
            KV cache keeps them, and the model was trained to attend to everything.
        full: n = every n-th layer has no window.
        softmax: n = every n-th layer is standard attention instead of the mechanism.
        memory: bits of a number in the KV cache.
        values: bits of a value in it, where they are not those of a key.
        weights: bits of a weight.
        draw: n = the same attention, trained from other weights and with other batches than its
            namesake of the same seed: what differs between the two is chance.

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
    values: int | None = None
    weights: int | None = None
    draw: int | None = None

    def __post_init__(self) -> None:
        check_known("mechanism", self.mechanism, PRESETS)
        for name, number in self.changes.items():
            if name in BITS and number not in BITS[name]:
                legal = " or ".join(map(str, BITS[name]))
                raise ConfigError(f"{name}:{number} in {self.name}: give {legal} bits.")
            if number < 1:
                raise ConfigError(f"{name}:{number} in {self.name}: give at least 1.")
            if name in ("sinks", "full") and not self.window:
                raise ConfigError(f"{self.name}: {name} goes with a window; add such as window:64.")
        if self.values is not None and self.memory is None:
            raise ConfigError(f"{self.name}: values goes with the keys' bits; add memory:8.")

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

    @property
    def of_use(self) -> dict[str, int]:
        """Those of the changes that are made after training, by name."""
        return {name: number for name, number in self.changes.items() if name in USAGE_CHANGES}

    def specs(
        self, model: Sizes, num_heads: int, position: Position | None = None
    ) -> list[AttentionSpec]:
        """Return the spec of each layer: for a translator encoder, decoder, cross-attention.

        Args:
            model: the sizes; a language model's layers are causal.
            num_heads: query heads.
            position: encoding in the layers of a language model whose mechanism has none.

        Raises:
            ConfigError: where a model of these sizes cannot have the attention.
        """
        depth = model.decoder_depth if isinstance(model, TranslatorConfig) else model.depth
        for name in ("full", "softmax"):
            every = getattr(self, name)
            if every is not None and (isinstance(model, TranslatorConfig) or every > depth):
                raise ConfigError(f"{name}:{every}: none of the {depth} layers would be one.")
        writes = isinstance(model, (LMConfig, TranslatorConfig))
        if self.sinks and self.full and writes:
            raise ConfigError(
                f"sinks:{self.sinks} with full:{self.full}: one memory serves all layers, and it "
                "would drop what the full ones attend to."
            )
        attention = replace(self, memory=None, values=None, weights=None, draw=None)
        return list(_specs(attention, model, num_heads, position))


@lru_cache(maxsize=1024)
def _specs(
    composition: Composition, model: Sizes, num_heads: int, position: Position | None
) -> Sequence[AttentionSpec]:
    if isinstance(model, LMConfig):
        windows = {"window": composition.window, "full_every": composition.full}
        return layers(
            composition.mechanism,
            model,
            num_heads,
            position=position,
            num_kv_heads=composition.kv,
            softmax_every=composition.softmax,
            **({} if composition.sinks else windows),
        )
    sizes = model, num_heads
    if isinstance(model, TranslatorConfig):
        encoder = _windowed(composition, *sizes, model.encoder_depth)
        decoder = _windowed(composition, *sizes, model.decoder_depth, causal=True)
        cross = _unwindowed(composition, *sizes, model.decoder_depth)
        check_crosses(cross)
        check_unshared([*encoder, *decoder, *cross], "a translator")
        return (*encoder, *decoder, *cross)
    specs = _windowed(composition, *sizes, model.depth)
    if (every := composition.softmax) is not None:
        standard = Composition(mechanism=STANDARD, kv=composition.kv).specs(*sizes)
        specs[every - 1 :: every] = standard[every - 1 :: every]
    return specs


def _unwindowed(
    composition: Composition, model: Sizes, num_heads: int, depth: int, **options: Any
) -> list[AttentionSpec]:
    if takes_length(composition.mechanism):
        options["length"] = model.length
    specs = schedule(composition.mechanism, model.d_model, num_heads, depth=depth, **options)
    if composition.kv is not None:
        specs = [replace(spec, num_kv_heads=composition.kv) for spec in specs]
    return list(specs)


def _windowed(
    composition: Composition, model: Sizes, num_heads: int, depth: int, *, causal: bool = False
) -> list[AttentionSpec]:
    """Return specs with the window; where a causal layer writes, its cache keeps the sinks."""
    options = {"causal": True} if causal else {}
    specs = _unwindowed(composition, model, num_heads, depth, **options)
    if composition.window is None or (causal and composition.sinks):
        return specs
    window: Pattern = Window(composition.window)
    if composition.sinks:
        window = window | Global(composition.sinks)
    every = composition.full or depth + 1
    for number, spec in enumerate(specs, start=1):
        if number % every:
            pattern = window if type(spec.pattern) is Full else window & spec.pattern
            specs[number - 1] = replace(spec, pattern=pattern)
    return specs
