"""The options of each attention layer: every legal conversion and its cost.

Targets are made from the layer's own sizes; those are kept that are possible and give a layer
unlike all before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from suffice.convert.calibration import attention_layers
from suffice.convert.closed_form import has_closed_form
from suffice.convert.convert import state_of
from suffice.convert.exact import Change, changes
from suffice.convert.target import SINKS, steps_of
from suffice.encoders import Efficient, Optimised, Standard
from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Rolling
from suffice.spec import AttentionSpec

LATENT_DIVISORS = (2, 4, 8, 16)  # of the numbers that a layer's state holds per token
WINDOWS = (12, 8, 6, 4, 3, 2, 1)  # sixteenths of the text
PAIRED_WINDOWS = (8, 4, 2, 1)  # those that are combined with another change
MIN_WINDOW = 4  # positions
SHARING_FACTORS = (2, 4)  # neighbouring layers that read one cache
NESTED_ENCODERS = (Standard, Optimised, Efficient)  # each can express the next


@dataclass(frozen=True, kw_only=True)
class Option:
    """A layer and one possible conversion."""

    layer: str  # the name of its module
    words: str  # the target, as `convert` takes it
    change: Change  # the conversion

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the option."""
        return (self.layer, self.words)


def library(
    model: nn.Module, length: int, words: Sequence[str] | None = None
) -> dict[str, tuple[Option, ...]]:
    """Return the options of each attention layer; the first is to keep it.

    Args:
        model: holds the layers.
        length: tokens of a text, of which windows are fractions.
        words: the targets to choose from besides keeping; None: those of `_targets_for`.

    Raises:
        ConfigError: if a target is not legal, or no layer can be converted.
    """
    options = {
        name: tuple(_options(model, name, layer.spec, length, words))
        for name, layer in attention_layers(model).items()
    }
    if all(len(of_layer) == 1 for of_layer in options.values()):
        raise ConfigError(
            f"no attention layer of this {type(model).__name__} can become anything else"
            f"{'' if words is None else ' of these options'}; there is nothing to choose from."
        )
    return options


def _options(
    model: nn.Module, name: str, spec: AttentionSpec, length: int, words: Sequence[str] | None
) -> Iterator[Option]:
    specs: list[AttentionSpec] = []
    for target in ("keep", *(_targets_for(spec, length) if words is None else words)):
        steps = steps_of(target)
        try:
            change = changes(model, {name: steps})[name]
        except ConfigError:
            continue  # not possible for this layer
        if change.spec.lane != "pairs":
            raise ConfigError(
                f"{target}: sums of features cannot take a token back, which timing a step does; "
                "leave it out, and convert to it apart."
            )
        if change.spec not in specs and _can_be_fitted(change):
            specs.append(change.spec)
            yield Option(layer=name, words=target, change=change)


def _can_be_fitted(change: Change) -> bool:
    if change.maps is not None or change.unchanged:
        return True
    spec, names = change.layer.spec, {step.name for step in change.steps}
    if "mixing" in spec.beyond_pairs:
        return names == {"window"}
    return all(has_closed_form(name, spec) for name in names)


def _targets_for(spec: AttentionSpec, length: int) -> Iterator[str]:
    """Yield targets for a layer, possible or not; single changes first.

    Without Super Attention: it starts as efficient attention and costs more.
    """
    encoders = list(_encoder_targets(spec))
    yield from encoders
    yield from (f"share:{layers}" for layers in SHARING_FACTORS)
    for share in WINDOWS:
        yield from _window_targets(length, share)
    for share in PAIRED_WINDOWS:
        for window in list(_window_targets(length, share))[1:]:
            yield from (f"{encoder},{window}" for encoder in encoders)


def _window_targets(length: int, share: int) -> Iterator[str]:
    """Yield a window, and a shorter one with sinks of the same total size."""
    size = length * share // 16
    sinks = SINKS if size >= 2 * SINKS else 1
    if size >= MIN_WINDOW:
        yield f"window:{size}+sinks:0"
        yield f"window:{size - sinks}+sinks:{sinks}"


def _encoder_targets(spec: AttentionSpec) -> Iterator[str]:
    halves = [spec.kv_heads]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    legal = [heads for heads in halves if spec.num_heads % heads == 0]
    yield from (f"gqa:{heads}" for heads in legal if heads < spec.kv_heads)
    for name in ("optimised", "efficient"):
        yield from (f"{name}:{heads}" for heads in legal)
    yield "input"
    numbers = state_of(spec)
    yield from (f"latent:{numbers // n}" for n in LATENT_DIVISORS if numbers >= n)


def contains(one: AttentionSpec, other: AttentionSpec) -> bool:
    """Return whether a layer of one composition can compute all that another can."""
    kinds = [type(spec.encoder) for spec in (one, other)]
    if not set(kinds) <= set(NESTED_ENCODERS):
        return False
    if NESTED_ENCODERS.index(kinds[0]) >= NESTED_ENCODERS.index(kinds[1]):
        return False
    same = {"encoder": other.encoder, "num_kv_heads": one.kv_heads}
    return replace(one, **same) == replace(other, num_kv_heads=other.kv_heads)


def memory_of(spec: AttentionSpec, *, spare: int = 1) -> Memory:
    """Return the memory that keeps only the positions in reach, and some that may be dropped."""
    band = spec.pattern.band()
    if band is None or band.before is None or "mixing" in spec.beyond_pairs:
        return Dynamic()
    return Rolling(band.before + 1, sinks=band.sinks, spare=spare)


def state_bytes(spec: AttentionSpec, length: int, *, rolls: bool = True) -> int:
    memory = memory_of(spec, spare=0) if rolls else Dynamic()
    return spec.state_bytes(length, memory)


def parameters(spec: AttentionSpec) -> int:
    return spec.cost(1).parameters
