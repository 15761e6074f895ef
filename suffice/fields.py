"""Checks the fields of a settings object against what they are declared to be."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from suffice.errors import ConfigError

WORDS = {
    "bool": "True or False",
    "int": "a whole number",
    "float": "a finite number",
    "str": "a text",
    "tuple": "a tuple",
}


def misfits(settings: Any) -> list[str]:
    """Return a sentence for each field of a frozen dataclass that is not of its declared kind.

    Looked at are bool, int, float, str and tuple, with None where declared; a float must be
    finite, and a whole number will do for it.

    Example:
        >>> Sizes = dataclasses.make_dataclass("Sizes", [("width", "int")])
        >>> misfits(Sizes(width="wide"))
        ["width='wide' is not a whole number."]
    """
    broken = []
    for field in dataclasses.fields(settings):
        declared = str(field.type).split(" | ")
        kind = declared[0].partition("[")[0]
        value = getattr(settings, field.name)
        if kind not in WORDS or (value is None and "None" in declared) or _fits(value, kind):
            continue
        broken.append(f"{field.name}={value!r} is not {WORDS[kind]}.")
    return broken


def check_fields(settings: Any) -> None:
    """Raise unless every field is of its declared kind.

    Raises:
        ConfigError: naming every misfit.
    """
    broken = misfits(settings)
    if broken:
        raise ConfigError(f"{type(settings).__name__}: {' '.join(broken)}")


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    if kind == "tuple":
        return isinstance(value, tuple)
    number = isinstance(value, int) and not isinstance(value, bool)
    if kind == "int":
        return number
    return (number or isinstance(value, float)) and _is_finite(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False
