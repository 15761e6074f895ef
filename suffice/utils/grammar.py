"""Parsers of option strings: terms such as rolling:256:4, and quantities such as 80GB.

A *term* is a name and whole numbers, joined by colons. What is legal is listed as *forms*, for
example ("dynamic", "static:N", "rolling:W", "rolling:W:SINKS"): they decide how many numbers a name
takes, and error messages show them. A *quantity* is a number and a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suffice.errors import ConfigError, did_you_mean

BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
SHARES = {"%": 0.01, "x": 1.0}
SCALES = ("paper", "small")  # of a recipe
SMALL = "small scale: not the paper's size"
"""Note in every output of a small recipe."""

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)\s*([%a-zA-Z]*)\s*")


@dataclass(frozen=True)
class Term:
    """A name and its numbers, such as rolling:256:4."""

    name: str
    numbers: tuple[int, ...] = ()

    @property
    def number(self) -> int | None:
        """The first number, or None."""
        return self.numbers[0] if self.numbers else None

    def __str__(self) -> str:
        return ":".join([self.name, *map(str, self.numbers)])


def parse_term(text: str, forms: Sequence[str], *, kind: str, where: str = "") -> Term:
    """Return the name and the numbers of a term; raise ConfigError if it has no legal form.

    Example:
        >>> parse_term("static:64", ("dynamic", "static:N"), kind="memory")
        Term(name='static', numbers=(64,))
    """
    name, *numbers = text.strip().split(":")
    inside = f" in {where!r:.80}" if where and where != text else ""
    legal = ", ".join(forms)
    forms_by_name: dict[str, list[str]] = {}
    for form in forms:
        forms_by_name.setdefault(form.partition(":")[0], []).append(form)
    if name not in forms_by_name:
        hint = did_you_mean(name, forms_by_name)
        raise ConfigError(f"unknown {kind} {text.strip()!r:.80}{inside}{hint} Legal: {legal}.")
    counts = [form.count(":") for form in forms_by_name[name]]
    if len(numbers) not in counts or not all(re.fullmatch("[0-9]{1,9}", n) for n in numbers):
        raise ConfigError(
            f"{kind} {text.strip()!r:.80}{inside}: write {' or '.join(forms_by_name[name])}, with "
            "whole numbers."
        )
    return Term(name, tuple(map(int, numbers)))


def split_list(text: str, separator: str = ",") -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(separator) if item.strip())


def in_ranges(names: Sequence[str]) -> str:
    """Return names that differ in their first number as one, with the numbers as ranges.

    Example:
        >>> in_ranges(["blocks.0.attention", "blocks.1.attention", "blocks.5.attention"])
        'blocks.0-1,5.attention'
    """
    if len(names) == 1:  # it may have no number
        return names[0]
    before, _, after = re.split(r"(\d+)", names[0], maxsplit=1)
    ranges: list[list[int]] = []
    for number in (int(re.search(r"\d+", name)[0]) for name in names):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return before + ",".join("-".join(map(str, ends)) for ends in ranges) + after


def split_quantity(text: str) -> tuple[float, str] | None:
    """Return the number and the unit of a quantity, (24.0, "GiB"); None for another text."""
    match = _QUANTITY.fullmatch(text)
    return (float(match[1]), match[2]) if match else None


def scale_of(unit: str, units: Mapping[str, float]) -> float | None:
    """Return the size of a unit in the base unit, whatever its case; None for another unit."""
    if unit in units:
        return units[unit]
    return {name.lower(): size for name, size in units.items()}.get(unit.lower())


def format_quantity(value: float, units: Mapping[str, float], *, digits: int | None = None) -> str:
    """Return a value in the largest decimal unit that it fills, with at most four digits.

    With `digits`, units may be binary; the unit of size 1 counts whole things unless there are
    smaller ones.

    Example:
        >>> format_quantity(0.0021, SECONDS), format_quantity(3e9, BYTES)
        ('2.1ms', '3GB')
        >>> format_quantity(2000, {" B": 1.0, " KiB": 1024.0}, digits=3)
        '1.95 KiB'
    """
    exact = digits is not None
    full = 1.0 - 0.5 * 10.0**-digits if exact else 1.0  # what is written as 1.00
    fitting = [
        (size, unit)
        for unit, size in units.items()
        if size * full <= value and (exact or "i" not in unit)
    ]
    smallest = min((size, unit) for unit, size in units.items())
    size, unit = max(fitting, default=smallest)
    number = value / size
    if not exact:
        return f"{number:.4g}{unit}"
    whole = size == smallest[0] == 1.0 or number >= 10**digits - 0.5
    return f"{number:.0f}{unit}" if whole else f"{number:#.{digits}g}".rstrip(".") + unit


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as "24 GiB"; raise ConfigError if it is none above 0."""
    number, unit = split_quantity(text) or (0.0, "")
    size = scale_of(unit, BYTES)
    if not 0.0 < number < float("inf") or size is None:
        raise ConfigError(
            f"memory {text!r:.80} is not a size; give a number above 0 and a unit "
            f"({', '.join(BYTES)}), such as 80GB."
        )
    return round(number * size)


def parse_seconds(text: str, per: str) -> float:
    """Return the seconds of a latency such as "0.5 s" or "30ms/token", where per is "token"."""
    time, slash, target = text.partition("/")
    number, unit = split_quantity(time) or (0.0, "")
    fits = not slash or target.strip() == per
    if not 0.0 < number < float("inf") or unit not in SECONDS or not fits:
        raise ConfigError(
            f"latency {text!r:.80} is not a time for each {per}; give a number above 0 and a unit "
            f"({', '.join(SECONDS)}), such as 30ms or 30ms/{per}."
        )
    return number * SECONDS[unit]


def parse_share(text: str) -> float:
    """Return the fraction of a percentage from 0% to below 100%; raise ConfigError for others."""
    number, unit = split_quantity(text) or (-1.0, "")
    if unit != "%" or not 0.0 <= number < 100.0:  # noqa: PLR2004
        raise ConfigError(
            f"quality {text!r:.80} is not a loss of accuracy; give a percentage from 0% to below "
            "100%, such as 1%."
        )
    return number / 100


def parse_cells(text: str, option: str) -> tuple[int, int]:
    """Return I and N of "I/N", the I-th of N shares of the cells.

    Example:
        >>> parse_cells("3/16", "--cells ")
        (3, 16)
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"{option}{text}: give the number of a share of all, such as 3/16.")
    return int(match[1]), int(match[2])
