"""Every composition that the adviser chooses from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from suffice.advise.request import Base
from suffice.cost import Cost
from suffice.errors import ConfigError, unknown
from suffice.layers.inputs import check_memory
from suffice.layers.packed import DEFAULT
from suffice.measure.edge.shapes import attended_positions
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.memory.rolling import MIN_SLACK
from suffice.models import LMConfig, TranslatorConfig
from suffice.models.config import check_crosses
from suffice.models.configurations import layers
from suffice.models.lm import SkipInit
from suffice.patterns import Causal, Full, Global, Pattern, Window
from suffice.presets import PRESETS, schedule, takes_length
from suffice.recipes.recipe import Sizes, build_model
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
        return build_model(base.config, self.specs(base))

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


NUMBER = 4  # bytes of a number in float32
SCALE = 2  # bytes of the scale of a group of packed weights
RANGE = 8  # bytes of the least number and the step of a group of packed keys or values


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of one input of the length asked for, and work.

    Args:
        weights: of the whole model.
        state: that is kept of the input while writing.
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


def needs(one: Candidate, base: Base) -> Needs:
    """Return what a candidate needs.

    Example:
        >>> from suffice.advise.request import base_of
        >>> from suffice.advise.candidates import candidate
        >>> from suffice.advise.request import Request
        >>> base = base_of(Request(task="lm", model="15m", length=1024))
        >>> plain, efficient = (
        ...     needs(candidate(Composition.parse(name), base), base)
        ...     for name in ("standard", "efficient")
        ... )
        >>> efficient.state / plain.state
        1.0
    """
    costs = [_cost(spec, base) for spec in one.specs]
    numbers = _others(base) + sum(cost.parameters for cost in costs)
    weights = _packed(numbers, one.composition.weights)
    state, read = _state(one, base)
    if base.writes:
        rows = base.config.vocabulary_size if _looks_up(base.config) else 0
        unread = _packed(rows * base.config.d_model, one.composition.weights)
        work = weights - unread + read
    else:
        work = sum(cost.visible_flops for cost in costs) + 2 * base.length * _in_blocks(base)
    return Needs(weights=weights, state=state, activations=_activations(one, base), work=work)


def _looks_up(config: Sizes) -> bool:
    """Return whether tokens' rows are looked up only, and not read whole by the head."""
    return isinstance(config, LMConfig) and not config.tied


@cache
def _cost(spec: AttentionSpec, base: Base) -> Cost:
    # pairs are counted for FLOPs alone, slowly for long inputs; where one writes nobody asks
    return spec.cost(1 if base.writes else base.length)


@cache
def _plain(base: Base) -> nn.Module:
    """Return the model with standard attention, without content."""
    with torch.device("meta"), SkipInit():
        return build_model(base.config, Composition(mechanism="standard").specs(base))


@cache
def _others(base: Base) -> int:
    """Return the parameters of everything but the attention."""
    specs = Composition(mechanism="standard").specs(base)
    attention = sum(_cost(spec, base).parameters for spec in specs)
    return sum(p.numel() for p in _plain(base).parameters()) - attention


@cache
def _in_blocks(base: Base) -> int:
    """Return the parameters of the blocks' MLPs: each is multiplied once for each token."""
    return sum(p.numel() for block in _plain(base).blocks for p in block.mlp.parameters())


def _packed(numbers: int, bits: int | None) -> int:
    """Return the bytes of weights in so many bits, scales included."""
    if bits is None:
        return numbers * NUMBER
    scales = SCALE * numbers // DEFAULT[bits] if bits in DEFAULT else 0
    return numbers * bits // 8 + scales


def _state(one: Candidate, base: Base) -> tuple[int, int]:
    """Return the bytes that are kept of an input, and those that a token reads of them."""
    if not base.writes:
        return 0, 0
    kept = read = 0
    for spec in writing(list(one.specs), base):
        cost = _cost(spec, base)
        fixed = NUMBER * cost.state_fixed
        held = _held(one.memory, base.length)
        kept += _bytes(spec, cost.state_numbers, one.memory, held) + fixed
        near = attended_positions(spec, one.memory, base.length)
        read += _bytes(spec, cost.state_numbers, one.memory, near) + fixed
    between = _between(one, base)
    return kept + between, read + between


def _bytes(spec: AttentionSpec, numbers: int, memory: Memory, positions: int) -> int:
    """Return the bytes that a layer keeps of so many positions."""
    if not isinstance(memory, Quantised):
        return NUMBER * numbers * positions
    near = min(positions, memory.recent + memory.block)  # are not coded yet
    # half of the numbers are keys with a range for a block, half values with one for a group
    ranges = RANGE * (1 / memory.block + 1 / min(memory.group, spec.head_width)) / 2
    coded = (memory.bits / 8 + ranges) * (positions - near)
    return round(numbers * (NUMBER * near + coded))


def _held(memory: Memory, length: int) -> int:
    """Return how many positions there is room for behind an input."""
    if memory.window is None:
        return length
    room = memory.window + max(memory.window, MIN_SLACK)
    return min(length, room) + memory.sinks


def _between(one: Candidate, base: Base) -> int:
    """Return the bytes of what a translator keeps of the source."""
    if not isinstance(base.config, TranslatorConfig):
        return 0
    first = base.config.encoder_depth + base.config.decoder_depth
    costs = [(spec, _cost(spec, base)) for spec in one.specs[first:]]
    own = sum(c.state_numbers for s, c in costs if s.encoder.learns_keys)
    shared = any(not s.encoder.learns_keys for s, _ in costs) * base.config.d_model
    return NUMBER * base.length * (own + shared)


def _activations(one: Candidate, base: Base) -> int:
    """Return the bytes of the widest layer: its residual stream, and what its maps give."""
    maps = 3 if getattr(base.config, "activation", "") == "swiglu" else 2
    of_mlp = maps * base.config.mlp_width
    of_attention = max(2 * spec.widths.q + 2 * spec.widths.kv for spec in one.specs)
    return NUMBER * base.length * (2 * base.config.d_model + max(of_mlp, of_attention))
