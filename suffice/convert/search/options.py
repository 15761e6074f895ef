"""What each attention layer of a model may become: every change that is legal for it.

Nothing is looked up: words are made from the layer's own numbers, and those stay that the layer can
become and that give a layer unlike all before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from suffice.convert.calibration import attentions
from suffice.convert.closed_form import KEYLESS
from suffice.convert.convert import state_of
from suffice.convert.exact import Change, changes
from suffice.convert.target import SINKS, steps_of
from suffice.encoders import Efficient, Optimised, Standard
from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Rolling
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.patterns.combined import And, Or
from suffice.spec import AttentionSpec

SHARES = (2, 4, 8, 16)  # of what a layer keeps: latents are so many times less
WINDOWS = (12, 8, 6, 4, 3, 2, 1)  # sixteenths of the text
PAIRED = (8, 4, 2, 1)  # those that stand beside another change, too
LEAST = 4  # positions of a window
KINDS = (Standard, Optimised, Efficient)  # of maps, each able to be what follows it


@dataclass(frozen=True, kw_only=True)
class Option:
    """One layer and one thing it may become.

    Args:
        layer: the name of its module.
        words: the change, as `convert` takes it.
        change: what that is.
    """

    layer: str
    words: str
    change: Change

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return (self.layer, self.words)

    @property
    def kept(self) -> bool:
        """Whether the layer stays as it is."""
        return self.change.kept


def library(
    model: nn.Module, length: int, words: Sequence[str] | None = None
) -> dict[str, tuple[Option, ...]]:
    """Return the options of each attention layer; the first is to keep it.

    Args:
        model: holds the layers.
        length: tokens of a text, of which windows are parts.
        words: the changes to choose from beside keeping; None = all that follow.

    Raises:
        ConfigError: if words are not legal, or no layer can become anything else.
    """
    found = {
        name: tuple(_options(model, name, layer.spec, length, words))
        for name, layer in attentions(model).items()
    }
    if all(len(options) == 1 for options in found.values()):
        raise ConfigError(
            f"no attention layer of this {type(model).__name__} can become anything else"
            f"{'' if words is None else ' of what is given'}; there is nothing to choose from."
        )
    return found


def contains(one: AttentionSpec, other: AttentionSpec) -> bool:
    """Return whether a layer of one kind can be whatever a layer of another kind can.

    Example:
        >>> one = AttentionSpec(d_model=8, num_heads=2)
        >>> contains(one, replace(one, encoder=Efficient()))
        True
    """
    kinds = [type(spec.encoder) for spec in (one, other)]
    if not set(kinds) <= set(KINDS) or KINDS.index(kinds[0]) >= KINDS.index(kinds[1]):
        return False
    same = {"encoder": other.encoder, "num_kv_heads": one.kv_heads}
    return replace(one, **same) == replace(other, num_kv_heads=other.kv_heads)


def words_for(spec: AttentionSpec, length: int) -> Iterator[str]:
    """Give words for what a layer may become, legal or not; plain ones first.

    Super Attention starts as efficient attention and costs more, so that only training could make
    it the better choice: it is left out.

    Example:
        >>> list(words_for(AttentionSpec(d_model=8, num_heads=2), 16))[:6]
        ['gqa:1', 'optimised:2', 'optimised:1', 'efficient:2', 'efficient:1', 'input']
    """
    shapes = list(_shapes(spec))
    yield from shapes
    for share in WINDOWS:
        yield from _windows(length, share)
    for share in PAIRED:
        for near in list(_windows(length, share))[1:]:
            yield from (f"{shape},{near}" for shape in shapes)


def _windows(length: int, share: int) -> Iterator[str]:
    """Give a window and one with sinks, which see as much."""
    seen = length * share // 16
    sinks = SINKS if seen >= 2 * SINKS else 1
    if seen >= LEAST:
        yield f"window:{seen}"
        yield f"window:{seen - sinks}+sinks:{sinks}"


def _shapes(spec: AttentionSpec) -> Iterator[str]:
    """Give what the maps of a layer may become."""
    halves = [spec.kv_heads]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    legal = [heads for heads in halves if spec.num_heads % heads == 0]
    yield from (f"gqa:{heads}" for heads in legal if heads < spec.kv_heads)
    for name in ("optimised", "efficient"):
        yield from (f"{name}:{heads}" for heads in legal)
    yield "input"
    kept = state_of(spec)
    yield from (f"latent:{kept // share}" for share in SHARES if kept >= share)


def _options(
    model: nn.Module, name: str, spec: AttentionSpec, length: int, words: Sequence[str] | None
) -> Iterator[Option]:
    met: list[AttentionSpec] = []
    for one in ("keep", *(words_for(spec, length) if words is None else words)):
        steps = steps_of(one)
        try:
            change = changes(model, {name: steps})[name]
        except ConfigError:
            continue  # this layer cannot become that
        if change.spec in met or not _has_a_form(change):
            continue
        met.append(change.spec)
        yield Option(layer=name, words=one, change=change)


def _has_a_form(change: Change) -> bool:
    """Return whether a change is exact, or has a closed form for this layer."""
    if change.maps is not None or change.kept:
        return True
    spec, names = change.layer.spec, {step.name for step in change.steps}
    if spec.mixing.mixes:
        return names == {"window"}
    return not (spec.norm.norms and names & set(KEYLESS))


BYTES = 4  # of a number of a state


def state_bytes(spec: AttentionSpec, length: int, *, rolls: bool = True) -> int:
    """Return the bytes a layer has to keep of a text.

    Args:
        spec: of the layer.
        length: of the text, tokens.
        rolls: whether it may forget what it can no longer see.

    Example:
        >>> spec = AttentionSpec(d_model=8, num_heads=2, pattern=Causal())
        >>> state_bytes(spec, 10), 10 * 2 * 8 * 4
        (640, 640)
    """
    seen = _seen(spec.pattern) if rolls else None
    return BYTES * state_of(spec) * (length if seen is None else min(sum(seen), length))


def memory_of(spec: AttentionSpec) -> Memory:
    """Return the memory that keeps what a layer can still see, and from which one token may go."""
    seen = _seen(spec.pattern)
    if seen is None or spec.mixing.mixes:
        return Dynamic()
    return Rolling(seen[0], sinks=seen[1], spare=1)


def parameters(spec: AttentionSpec) -> int:
    """Return the learned numbers of a layer."""
    return spec.cost(1).parameters


def _seen(pattern: Pattern) -> tuple[int, int] | None:
    """Return the latest positions and the first ones that a causal pattern sees; None = all.

    Example:
        >>> _seen(Window(8) & Causal()), _seen((Window(8) | Global(2)) & Causal())
        ((8, 0), (8, 2))
    """
    found = [_near(part) for part in _all(pattern) if not isinstance(part, Causal)]
    if not found or None in found:
        return None
    window = min(found)
    return window if window[1] == max(sinks for _, sinks in found) else None


def _all(pattern: Pattern) -> list[Pattern]:
    """Return the patterns that all have to allow a pair."""
    if not isinstance(pattern, And):
        return [pattern]
    return [one for part in pattern.parts for one in _all(part)]


def _near(pattern: Pattern) -> tuple[int, int] | None:
    if isinstance(pattern, Window):
        return pattern.size, 0
    if isinstance(pattern, Or):
        sizes = [part.size for part in pattern.parts if isinstance(part, Window)]
        sinks = [part.tokens for part in pattern.parts if isinstance(part, Global)]
        if len(sizes) == len(sinks) == 1 and len(pattern.parts) == 2:  # noqa: PLR2004
            return sizes[0], sinks[0]
    return None
