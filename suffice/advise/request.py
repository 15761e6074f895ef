"""The request: a task with its limits, and the sizes of the model it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.grammar import parse_bytes, parse_seconds, parse_share
from suffice.layers.inputs import check_memory
from suffice.measure.edge.shapes import SHAPES
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
from suffice.models.composition import Composition
from suffice.models.kinds import build_model
from suffice.positions import NoPosition, Position
from suffice.recipes import RECIPES, recipe
from suffice.recipes.recipe import Sizes
from suffice.records import is_whole
from suffice.spec import AttentionSpec

TASKS = ("lm", "classify", "image", "translate")
MINUTES = 3.0
HERE = "here"
LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "length": (lambda tokens: is_whole(tokens, least=1), "a whole number of at least 1"),
    "memory": (lambda size: is_whole(size, least=1), "a whole number of at least 1"),
    "latency": (lambda seconds: seconds > 0.0, "a number above 0"),
    "minutes": (lambda minutes: 0.0 < minutes < 1e6, "a number above 0, of at most a million"),
    "quality": (lambda share: 0.0 <= share < 1.0, "a fraction from 0 to below 1"),
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task and its limits.

    Args:
        task: lm (writes text), classify (reads text), image or translate.
        length: tokens or patches of an input; None = the model's own.
        memory: bytes for weights, state and activations; None = this machine's.
        latency: seconds for each token, or for each input where nothing is written; None = any.
        device: "here" (a GPU if there is one), "cpu" or "cuda".
        quality: acceptable loss of test accuracy, a fraction: compositions that are shown to lose
            more come last and are not recommended; None = 0.01.
        model: one of `models_of(task)`, whose sizes are measured; None = the task's usual one.
        checkpoint: folder of a language model whose sizes are measured instead.
        minutes: time for measuring.
        mechanisms: compositions to choose from, see `Composition`; none = all.
        results: further folders of `suffice compare` that are evidence.
        recall: for lm, whether the model has to look things up in its input: only what suffices on
            a near task of recall is recommended.

    Raises:
        ConfigError: for an unknown task, or a number that is not legal.

    Example:
        >>> Request(task="lm", length=512, memory=2 * 10**9, latency=0.03).unit
        'token'
    """

    task: str
    length: int | None = None
    memory: int | None = None
    latency: float | None = None
    device: str = HERE
    quality: float | None = None
    model: str | None = None
    checkpoint: str | None = None
    minutes: float = MINUTES
    mechanisms: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    recall: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        wrong = [
            f"{name}={value!r}; give {legal}."
            for name, (is_legal, legal) in LIMITS.items()
            if (value := getattr(self, name)) is not None and not is_legal(value)
        ]
        if self.model is not None and self.checkpoint is not None:
            wrong.append("model and checkpoint name two models; give one of them.")
        if self.recall and self.task != "lm":
            wrong.append(f"recall is asked of language models, not of task={self.task!r}.")
        if self.checkpoint is not None and self.task != "lm":
            wrong.append(f"a checkpoint is of a language model, not for task={self.task!r}.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    @classmethod
    def parse(cls, task: str, **words: Any) -> Request:
        """Return a request from fields whose quantities may be text; lists become tuples.

        Raises:
            ConfigError: for text that is no quantity, or values that are not legal.

        Example:
            >>> Request.parse("lm", memory="2GB", latency="30ms/token", quality="1%").memory
            2000000000
        """
        parsers = {
            "memory": parse_bytes,
            "latency": lambda text: parse_seconds(text, _unit(task)),
            "quality": parse_share,
        }
        for name, value in words.items():
            if isinstance(value, str) and name in parsers:
                words[name] = parsers[name](value)
            elif isinstance(value, list):
                words[name] = tuple(value)
        return cls(task=task, **words)

    @property
    def unit(self) -> str:
        """Unit of the latencies: "token" for generation, otherwise "input"."""
        return _unit(self.task)


def _unit(task: str) -> str:
    return "token" if task in ("lm", "translate") else "input"


def each(unit: str) -> str:
    """Return "a token" or "an input"."""
    return f"{'an' if unit[0] in 'aeiou' else 'a'} {unit}"


ROOM = 16  # tokens that may be written after the input while measuring
KINDS = {"classify": ClassifierConfig, "image": ViTConfig, "translate": TranslatorConfig}
SHORTEST = 16  # tokens; attention does not matter in shorter inputs
USUAL = {"lm": "15m", "classify": "imdb", "image": "cifar100_v2", "translate": "translation_es"}


@dataclass(frozen=True, kw_only=True)
class Base:
    """The sizes of a model without its attention.

    Args:
        task: see `Request`.
        name: of the model.
        config: the sizes, with room for the tokens written after the input.
        num_heads: query heads.
        position: for language models whose mechanism has none.
        length: tokens or patches of an input.
    """

    task: str
    name: str
    config: Sizes
    num_heads: int
    position: Position
    length: int

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
        """Return the spec of each layer: for a translator encoder, decoder, cross-attention.

        Raises:
            ConfigError: where the task or the sizes have no such attention.
        """
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
        """Return the cache policy for writing: it drops what no layer attends to again.

        Raises:
            ConfigError: as `specs`, or where a layer cannot stream with such a cache.
        """
        if not self.writes:
            return Dynamic()
        decoder = self.decoder(self.specs(composition))
        specs = [spec for spec in decoder if spec.kernel.weighs_pairs]
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
            memory = Quantised(memory, bits=composition.memory)
        for spec in specs:
            check_memory(spec, memory)
        return memory

    def build(self, composition: Composition) -> Any:
        """Return a new model with this attention, its weights not packed."""
        return build_model(self.config, self.specs(composition))


def base_of(request: Request) -> Base:
    """Return the sizes of the requested model at the requested length.

    Raises:
        ConfigError: for an unknown model, or a length it cannot have.
        CheckpointError: if a checkpoint cannot be read.

    Example:
        >>> base_of(Request(task="lm", model="15m", length=512)).config.length
        528
    """
    name = request.checkpoint or request.model or USUAL[request.task]
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
        config = replace(config, length=length + ROOM)
    return Base(
        task=request.task,
        name=name,
        config=config,
        num_heads=num_heads,
        position=position,
        length=length,
    )


def shorter(base: Base) -> tuple[int, ...]:
    """Return the shorter lengths at which times are compared."""
    if not isinstance(base.config, ViTConfig):
        return tuple(base.length // n for n in (16, 8, 4, 2) if base.length // n >= SHORTEST)
    side = isqrt(base.config.num_patches)
    extra = base.config.length - base.config.num_patches
    sides = sorted({side // 4, side // 2, 3 * side // 4} - {0, 1, side})
    return tuple(n * n + extra for n in sides)


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
    patches = length - len(config.tokens)
    side = isqrt(max(patches, 0))
    if side * side != patches or not side:
        extra, named = length - patches, "".join(f" and a {token}" for token in config.tokens)
        near = ", ".join(str(n * n + extra) for n in (max(side, 1), max(side, 1) + 1))
        raise ConfigError(
            f"length={length}: an image has a square of patches{named.replace('_', ' ')}; "
            f"give such as {near}."
        )
    return replace(config, image_size=config.patch_size * side)
