"""How the layers of one model differ: which see a window, which turn.

Each class of transformers reads entries of its own and fills what is absent in its own way.
"""

from __future__ import annotations

from collections.abc import Callable

from suffice.convert.sources.given import Given
from suffice.errors import ConfigError

SEES = ("full_attention", "sliding_attention")
WINDOW = "sliding_window"
Windows = Callable[[Given, list[bool]], list[int | None]]
"""How many last tokens each layer sees, None = all, told which layers turn."""


def no_windows(_given: Given, turns: list[bool]) -> list[int | None]:
    """Return that every layer sees all, whatever the file says of windows."""
    return [None] * len(turns)


def equal_windows(absent: int | None = None) -> Windows:
    """Return what gives every layer the same window.

    Args:
        absent: the window where the file has no entry; None = all. An entry that is null is all.
    """

    def found(given: Given, turns: list[bool]) -> list[int | None]:
        size = given.entries.get(WINDOW, absent)
        return [None if size is None else given.size(WINDOW, absent)] * len(turns)

    return found


def late_windows(given: Given, turns: list[bool]) -> list[int | None]:
    """Return windows from a certain layer on, unless the file tells them layer by layer."""
    first = given.entries.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ConfigError(f"{given.where}: max_window_layers={first!r:.40} is no whole number.")
    return _by_kind(given, [number >= first for number in range(len(turns))], absent=4096)


def windows_unturned(given: Given, turns: list[bool]) -> list[int | None]:
    """Return windows where a layer does not turn, unless the file tells them layer by layer."""
    return _by_kind(given, [not turned for turned in turns], absent=None)


def _by_kind(given: Given, windowed: list[bool], *, absent: int | None) -> list[int | None]:
    """Return the windows of layers, where they are in use at all."""
    depth = len(windowed)
    kinds = given.entries.get("layer_types")
    if kinds is None:
        kinds = [SEES[one] for one in windowed]
    if not isinstance(kinds, list) or len(kinds) != depth or any(k not in SEES for k in kinds):
        raise ConfigError(
            f"{given.where}: layer_types={kinds!r:.80} are not {' or '.join(SEES)} for each of "
            f"{depth} layers."
        )
    used = given.flag("use_sliding_window") and given.entries.get(WINDOW, absent) is not None
    if not used:
        return [None] * depth
    return [given.size(WINDOW, absent) if kind == SEES[1] else None for kind in kinds]


def all_turn(_given: Given, depth: int) -> list[bool]:
    """Return that every layer turns queries and keys."""
    return [True] * depth


def some_turn(given: Given, depth: int) -> list[bool]:
    """Return which layers turn: as listed, else all but each fourth, or other interval."""
    found = given.entries.get("no_rope_layers")
    if found is None:
        every = given.size("no_rope_layer_interval", 4)
        return [(number + 1) % every != 0 for number in range(depth)]
    if not isinstance(found, list) or len(found) != depth:
        raise ConfigError(f"{given.where}: no_rope_layers={found!r:.80} is not for {depth} layers.")
    return [bool(one) for one in found]
