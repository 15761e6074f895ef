"""Sizes, times and shares as people write them."""

from __future__ import annotations

import re

from suffice.errors import ConfigError

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"


def read_bytes(words: str) -> int:
    """Return how many bytes a size such as "80GB" or "24 GiB" says.

    Raises:
        ConfigError: if it says none.

    Example:
        >>> read_bytes("80GB"), read_bytes("1.5 GiB")
        (80000000000, 1610612736)
    """
    found = re.fullmatch(NUMBER + r"([a-zA-Z]*)\s*", words)
    unit = found and UNITS.get(found.group(2).lower())
    if not (found and unit and float(found.group(1)) > 0):
        raise ConfigError(
            f"memory {words!r} is no size above 0 with its unit; give such as 80GB or 24GiB."
        )
    return round(float(found.group(1)) * unit)


def read_seconds(words: str, of: str) -> float:
    """Return the seconds that a time such as "30ms/token" or "0.5 s" says.

    Args:
        words: a time, for each of something or without saying of what.
        of: what it is for each of, "token" or "input".

    Raises:
        ConfigError: if it says none, or is for each of something else.

    Example:
        >>> read_seconds("30ms/token", "token"), read_seconds("2 s", "input")
        (0.03, 2.0)
    """
    found = re.fullmatch(NUMBER + r"(s|ms|us)\s*(?:/\s*([a-z]+)\s*)?", words)
    if not found or not float(found.group(1)) > 0 or found.group(3) not in (None, of):
        raise ConfigError(f"latency {words!r} is no time above 0 of each {of}; give such as 30ms.")
    return float(found.group(1)) * SECONDS[found.group(2)]


def read_share(words: str) -> float:
    """Return the share that "1%" says.

    Raises:
        ConfigError: if it says none from 0% to below 100%.

    Example:
        >>> read_share("1%"), read_share("0.5 %")
        (0.01, 0.005)
    """
    found = re.fullmatch(NUMBER + r"%\s*", words)
    if not found or not float(found.group(1)) < 100.0:  # noqa: PLR2004
        raise ConfigError(
            f"quality {words!r} is no share of accuracy that may be lost; give such as 1%."
        )
    return float(found.group(1)) / 100
