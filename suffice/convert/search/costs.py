"""What an option costs, in closed form: what it keeps of a text, and its learned numbers."""

from __future__ import annotations

from suffice.convert.replaced import state_of
from suffice.memory import Dynamic, Memory, Rolling
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.patterns.combined import And, Or
from suffice.spec import AttentionSpec

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
