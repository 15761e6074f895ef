"""Which layers of a decoder have windows, and which rotary positions, in a config.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from suffice.errors import ConfigError
from suffice.models.architectures.architecture import ConfigReader
from suffice.spec import AttentionSpec

LAYER_TYPES = ("full_attention", "sliding_attention")
Layers = Callable[[ConfigReader, list[bool]], list[bool]]
"""Gives which layers have a window, from which have rotary positions."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Which layers of an architecture have windows, and the entries that decide it."""

    usual: Layers | None = None  # where layer_types is absent; None: all layers are alike
    default: int | None = None  # where sliding_window is absent; null means no window
    switch: bool = False  # whether use_sliding_window has to be true

    def read(self, reader: ConfigReader, rotary: list[bool]) -> list[int | None]:
        """Return the window of each layer, None has none, from which layers rotate."""
        depth, size = len(rotary), reader.entries.get("sliding_window", self.default)
        used = not self.switch or reader.flag("use_sliding_window")
        if self.usual is None:
            used = used and size is not None
            return [reader.size("sliding_window", self.default) if used else None] * depth
        types = read_layer_types(reader, LAYER_TYPES, self.usual(reader, rotary))
        windowed = [one == LAYER_TYPES[1] for one in types]
        if used and size is not None:
            size = reader.size("sliding_window", self.default)
            return [size if one else None for one in windowed]
        unclear = size is not None and "layer_types" in reader.entries
        if any(windowed) and (unclear or not self.switch):
            switch = " and use_sliding_window=false" if self.switch else ""
            raise ConfigError(
                f"{reader.where}: layers have windows, with sliding_window={size!r}{switch}, which "
                "classes of transformers read in two ways; leave what is true."
            )
        return [None] * depth

    def write(self, windows: list[int | None], length: int) -> dict[str, Any]:
        """Return the entries; without a window the size is a text's where it may not be null."""
        size = next((one for one in windows if one is not None), None)
        entries: dict[str, Any] = {"sliding_window": size}
        if self.usual is not None:
            entries["layer_types"] = [LAYER_TYPES[one is not None] for one in windows]
            if size is None and not self.switch:
                entries["sliding_window"] = length
        if self.switch:
            entries["use_sliding_window"] = size is not None
        return entries


def read_layer_types(
    reader: ConfigReader, legal: tuple[str, str], second: Sequence[bool]
) -> list[str]:
    """Return layer_types, or where it is absent the second of two legal types in some layers."""
    types = reader.entries.get("layer_types")
    if types is None:
        return [legal[one] for one in second]
    if not all(one in legal for one in types):
        raise ConfigError(
            f"{reader.where}: layer_types={types!r:.80} are not {' or '.join(legal)}."
        )
    return types


def late_layers(reader: ConfigReader, rotary: list[bool]) -> list[bool]:
    """Return the layers from max_window_layers on."""
    first = reader.entries.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ConfigError(f"{reader.where}: max_window_layers={first!r:.40} is not a whole number.")
    return [number >= first for number in range(len(rotary))]


def _all_but_every(
    reader: ConfigReader, rotary: list[bool], *, period: int, entry: str = ""
) -> list[bool]:
    """Return all layers but each nth, of which an entry may say another n."""
    every = reader.size(entry, period) if entry else period
    return [bool((number + 1) % every) for number in range(len(rotary))]


EVERY_SECOND = partial(_all_but_every, period=2)
EVERY_SIXTH = partial(_all_but_every, period=6, entry="sliding_window_pattern")
EVERY_FOURTH = partial(_all_but_every, period=4, entry="sliding_window_pattern")
COHERE2_WINDOWS = Windows(usual=EVERY_FOURTH, default=4096)


def all_rotary(_reader: ConfigReader, depth: int) -> list[bool]:
    """Return that every layer has rotary positions."""
    return [True] * depth


def listed_rotary(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: as listed, else all but each fourth or nth."""
    flags = reader.entries.get("no_rope_layers")
    if flags is None:
        interval = reader.size("no_rope_layer_interval", 4)
        return [(number + 1) % interval != 0 for number in range(depth)]
    if not isinstance(flags, list) or len(flags) != depth:
        raise ConfigError(
            f"{reader.where}: no_rope_layers={flags!r:.80} is not for {depth} layers."
        )
    return [bool(flag) for flag in flags]


def rotary_by_theta(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: those whose base is not 0."""
    thetas = reader.entries.get("layer_rope_theta")
    if thetas is None:
        return [True] * depth
    legal = isinstance(thetas, list) and all(type(one) in (int, float) for one in thetas)
    if not legal or len(thetas) != depth or min(thetas) < 0:
        raise ConfigError(
            f"{reader.where}: layer_rope_theta={thetas!r:.80} are not {depth} numbers, 0 or more."
        )
    return [bool(theta) for theta in thetas]


def rotary_in_windows(reader: ConfigReader, depth: int) -> list[bool]:
    """Return which layers have rotary positions: those with a window, as in Cohere 2."""
    return [size is not None for size in COHERE2_WINDOWS.read(reader, [True] * depth)]


def sliding_window(spec: AttentionSpec) -> int | None:
    """Return the size of a causal window; None for any other pattern."""
    band = spec.pattern.band()
    if band is None or band.before is None or band.after != 0 or band.sinks:
        return None
    return band.before + 1
