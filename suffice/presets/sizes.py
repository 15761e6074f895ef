"""Sizes of sparse patterns that a preset takes from the length of its input."""

from __future__ import annotations

from math import isqrt

from suffice.errors import ConfigError


def window_for(length: int | None, published: int) -> int:
    """Return an eighth of the input, at least 2 positions; without a length, the published size.

    Example:
        >>> window_for(64, 256), window_for(3, 256), window_for(None, 256)
        (8, 2, 256)
    """
    return published if length is None else max(2, checked("length", length) // 8)


def stride_for(length: int | None, published: int) -> int:
    """Return the square root of the input, at least 2; without a length, the published stride.

    Example:
        >>> stride_for(64, 128), stride_for(None, 128)
        (8, 128)
    """
    return published if length is None else max(2, isqrt(checked("length", length)))


def checked(name: str, size: int) -> int:
    """Return the size.

    Raises:
        ConfigError: if it is not a whole number of at least 1.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"{name}={size!r}: give a whole number of at least 1.")
    return size
