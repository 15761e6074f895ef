"""The model that a request is about, the compositions to choose from, and what they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import isqrt
from typing import Any

import torch

from suffice.choose.bench import SHAPES
from suffice.choose.request import Request
from suffice.errors import ConfigError, unknown
from suffice.layers.block import GATES
from suffice.layers.inputs import check_memory
from suffice.layers.packed import DEFAULT
from suffice.memory import Dynamic, Memory, Quantised, Rolling
from suffice.models import (
    CONFIGURATIONS,
    ClassifierConfig,
    LMConfig,
    TranslatorConfig,
    ViTConfig,
    configuration,
    folder,
)
from suffice.models.composition import STANDARD, Composition
from suffice.models.kinds import build_model
from suffice.models.lm import SkipInit
from suffice.positions import NoPosition, Position
from suffice.presets import PRESETS
from suffice.spec import AttentionSpec
from suffice.spec.cost import Cost
from suffice.train.recipes import RECIPES, recipe
from suffice.train.recipes.base import Sizes
from suffice.utils.grammar import format_quantity

NEW_TOKENS_ROOM = 16  # tokens that may be written after the input while measuring
KINDS = {
    "lm": LMConfig,
    "classify": ClassifierConfig,
    "image": ViTConfig,
    "translate": TranslatorConfig,
}
DEFAULT_MODELS = {
    "lm": "15m",
    "classify": "imdb",
    "image": "cifar100_v2",
    "translate": "translation_es",
}


def task_of(model: Sizes) -> str:
    """Return the task of a model's sizes."""
    return next(task for task, kind in KINDS.items() if isinstance(model, kind))


@dataclass(frozen=True, kw_only=True)
class Base:
    """The sizes of a model without its attention."""

    task: str  # see `Request`
    name: str  # name of the model
    config: Sizes  # the sizes, with room for the tokens written after the input
    num_heads: int  # query heads
    position: Position  # position encoding for language models whose mechanism has none
    length: int  # tokens or patches of an input

    @property
    def depth(self) -> int:
        """Number of blocks; of a translator's decoder."""
        translates = isinstance(self.config, TranslatorConfig)
        return self.config.decoder_depth if translates else self.config.depth

    @property
    def writes(self) -> bool:
        """Whether tokens are written one after the other."""
        return isinstance(self.config, (LMConfig, TranslatorConfig))

    def specs(self, composition: Composition) -> list[AttentionSpec]:
        """Return the spec of each layer; raise `ConfigError` where the task or sizes have none."""
        if composition.memory is not None and not self.writes:
            raise ConfigError(
                f"memory:{composition.memory}: {self.task} writes no tokens and has no KV cache."
            )
        if composition.draw is not None:
            raise ConfigError(f"draw:{composition.draw} names a training, not another attention.")
        return composition.specs(self.config, self.num_heads, self.position)

    def decoder(self, specs: Sequence[AttentionSpec]) -> Sequence[AttentionSpec]:
        """Return those of all specs whose layers have a growing KV cache."""
        if not isinstance(self.config, TranslatorConfig):
            return specs
        first = self.config.encoder_depth
        return specs[first : first + self.config.decoder_depth]

    def memory_for(self, composition: Composition) -> Memory:
        """Return the cache policy for writing: it drops what no layer attends to again."""
        if not self.writes:
            return Dynamic()
        decoder = self.decoder(self.specs(composition))
        specs = [spec for spec in decoder if spec.lane == "pairs"]
        reaches = [spec.pattern.reach for spec in specs]
        memory: Memory = Dynamic()
        if specs and composition.sinks:
            memory = Rolling(composition.window, sinks=composition.sinks)
        elif specs and None not in reaches:
            memory = Rolling(max(reaches))
        if composition.memory is not None:
            if not specs:
                raise ConfigError(
                    f"memory:{composition.memory}: {composition.mechanism} keeps sums of a fixed "
                    "size and caches no tokens."
                )
            memory = Quantised(memory, bits=composition.memory, value_bits=composition.values)
            if composition.values and all(len(spec.cached_widths) == 1 for spec in specs):
                raise ConfigError(
                    f"values:{composition.values}: {composition.mechanism} keeps one tensor that "
                    "is keys and values; give memory:N alone."
                )
        for spec in specs:
            check_memory(spec, memory)
        return memory

    def build(self, composition: Composition) -> Any:
        """Return a new model with this attention, its weights not packed."""
        return build_model(self.config, self.specs(composition))


def base_of(request: Request) -> Base:
    """Return the sizes of the requested model at the requested length.

    Example:
        >>> base_of(Request(task="lm", model="15m", length=512)).config.length
        528
    """
    name = request.checkpoint or request.model or DEFAULT_MODELS[request.task]
    position: Position = NoPosition()
    if request.checkpoint is None and name not in models_of(request.task):
        raise unknown(f"model for {request.task}", name, models_of(request.task))
    if request.task == "lm":
        if request.checkpoint is None:
            config, specs = configuration(SHAPES.get(name, name))
        else:
            lm, _, _ = folder.load(name)
            config, specs = lm.config, lm.specs
            if config.experts is not None:
                raise ConfigError(
                    f"{name} has mixtures of experts, whose work `advise` does not count; give a "
                    "model with plain feed-forward maps."
                )
        num_heads, position = specs[0].num_heads, specs[0].position
    else:
        config, num_heads = recipe(name).model, recipe(name).num_heads
    if request.length is not None:
        config = resized(config, request.length)
    length = config.length
    if isinstance(config, (LMConfig, TranslatorConfig)):
        config = replace(config, length=length + NEW_TOKENS_ROOM)
    return Base(
        task=request.task,
        name=name,
        config=config,
        num_heads=num_heads,
        position=position,
        length=length,
    )


@cache
def models_of(task: str) -> tuple[str, ...]:
    """Return the names of the models for a task.

    Example:
        >>> "110m" in models_of("lm"), "imdb" in models_of("classify")
        (True, True)
    """
    if task == "lm":
        return (*SHAPES, *CONFIGURATIONS)
    return tuple(name for name in RECIPES if isinstance(recipe(name).model, KINDS[task]))


def resized(config: Sizes, length: int) -> Sizes:
    """Return the sizes for inputs of a length; raises `ConfigError` if an image is not square."""
    if not isinstance(config, ViTConfig):
        return replace(config, length=length)
    extra = len(config.tokens)
    side = isqrt(max(length - extra, 1))
    if side * side + extra != length:
        named = "".join(f" and a {token.replace('_', ' ')}" for token in config.tokens)
        near = f"{side**2 + extra}, {(side + 1) ** 2 + extra}"
        raise ConfigError(
            f"length={length}: an image has a square of patches{named}; give such as {near}."
        )
    return replace(config, image_size=config.patch_size * side)


PROJECTIONS = ("standard", "optimised", "efficient", "toeplitz_super")
SINKS, FULL_EVERY, SOFTMAX_EVERY = 4, 6, 4  # as in current language models
MIN_WINDOW = 64  # positions of a window
PACKINGS = ((8, None), (4, None), (None, 8), (None, 4), (8, 8), (4, 4))
"""Bits of the KV cache and of the weights, tried where tokens are written."""
ITEMSIZE = 4  # bytes of a float32
SCALE = 2  # bytes of the scale of a group of packed weights

format_bytes = partial(format_quantity, units={" kB": 1e3, " MB": 1e6, " GB": 1e9}, digits=3)


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
    unpacked = [Composition(mechanism=name) for name in PRESETS] + list(_combinations(base))
    yield from unpacked
    if base.writes:
        for composition in unpacked:
            for memory, weights in PACKINGS:
                yield replace(composition, memory=memory, weights=weights)


def _combinations(base: Base) -> Iterator[Composition]:
    heads, alternates = base.num_heads, base.task != "translate"
    parts = {heads // part for part in (2, 4) if heads % part == 0} | {1}
    kv_heads = (None, *sorted(parts - {heads}, reverse=True))
    sizes = {max(base.length // part, MIN_WINDOW) for part in (4, 16)}
    windows = sorted((size for size in sizes if size < base.length), reverse=True)
    for mechanism in PROJECTIONS:
        for kv in kv_heads:
            plain = Composition(mechanism=mechanism, kv=kv)
            yield plain
            for window in windows:
                windowed = replace(plain, window=window)
                yield windowed
                yield replace(windowed, sinks=SINKS)
                if alternates and base.depth >= FULL_EVERY:
                    yield replace(windowed, full=FULL_EVERY)
    if alternates and base.depth >= SOFTMAX_EVERY:
        for kv in kv_heads:
            yield Composition(mechanism="linear", softmax=SOFTMAX_EVERY, kv=kv)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes and work of one input of the requested length."""

    weights: int  # bytes of the whole model
    state: int  # bytes of KV caches and sums after the input
    activations: int  # bytes of the widest layer while the input is read at once, scores not stored
    work: int  # bytes read for each token where tokens are written, else FLOPs of an input

    @property
    def total(self) -> int:
        return self.weights + self.state + self.activations

    def __str__(self) -> str:
        parts = ("weights", "state", "activations")
        return ", ".join(f"{n} {format_bytes(b)}" for n in parts if (b := getattr(self, n)))


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
