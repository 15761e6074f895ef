"""Memories on the command line: `--memory rolling:256:4 --quantise-memory 8`."""

from __future__ import annotations

from suffice.errors import ConfigError
from suffice.memory import Dynamic, Memory, Quantised, Rolling, Static

LEGAL = "dynamic, static:N, rolling:W or rolling:W:SINKS"


def memory_of(written: str, bits: int | None) -> Memory:
    """Return the memory that words such as "rolling:256:4" name.

    Args:
        written: what is kept.
        bits: of a number that is kept, 8 or 4; None = as it is.

    Raises:
        ConfigError: for other words or numbers.

    Example:
        >>> memory_of("rolling:256:4", None)
        Rolling(window=256, sinks=4, spare=0)
        >>> memory_of("static:64", 8).inner
        Static(length=64)
    """
    name, *numbers = written.split(":")
    kinds = {"dynamic": (Dynamic, (0,)), "static": (Static, (1,)), "rolling": (Rolling, (1, 2))}
    kind, counts = kinds.get(name, (None, ()))
    if kind is None or len(numbers) not in counts or not all(n.isdecimal() for n in numbers):
        raise ConfigError(f"--memory {written}: write {LEGAL}, whole numbers of tokens.")
    memory = kind(*map(int, numbers))
    return memory if bits is None else Quantised(memory, bits=bits)
