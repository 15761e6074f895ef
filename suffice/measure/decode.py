"""From plain JSON values to typed records and back, with nothing guessed.

A record is a dataclass or a TypedDict. Every key must be there unless its field has a default, no
other key may be, and each value must have its declared type. Floats that JSON cannot write travel
as "nan", "inf", "-inf".
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from typing import Any, TypeVar

from suffice.errors import ConfigError, DataError

T = TypeVar("T")

ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any) -> Any:
    """Return value with tuples as lists and non-finite floats as words.

    Example:
        >>> encode({"losses": (0.5, float("inf"))})
        {'losses': [0.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(record: type[T], given: object, *, where: str) -> T:
    """Build a record from plain values.

    Args:
        record: the dataclass to build.
        given: what JSON held.
        where: the file, for messages.

    Raises:
        DataError: if a key is unknown or missing, or a value has the wrong type or range.
    """
    return _value(record, given, where)


def _value(hint: Any, given: object, where: str) -> Any:
    """Check one value against one type hint and return it typed."""
    if hint is Any:
        return given
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _optional(hint, given, where)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        items = _expect(list, given, where)
        return tuple(_value(inner, item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict and (inner := typing.get_args(hint)[1]) is not Any:
        named = _expect(dict, given, where)
        return {key: _value(inner, item, f"{where}: {key}") for key, item in named.items()}
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return _record(hint, given, where)
    if hint is float:
        return _float(given, where)
    return _expect(origin or hint, given, where)


def _optional(hint: Any, given: object, where: str) -> Any:
    """Check a value that may be None."""
    if given is None:
        return None
    inner = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return _value(inner, given, where)


def _record(record: Any, given: object, where: str) -> Any:
    """Check the keys of a record, then each of its values."""
    items = _expect(dict, given, where)
    hints = typing.get_type_hints(record)
    for key in items:
        if key not in hints:
            near = difflib.get_close_matches(str(key), list(hints), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise DataError(f"{where} has the unknown key {key!r}{hint} Legal: {', '.join(hints)}.")
    missing = [key for key in hints if key not in items and not _has_default(record, key)]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}; it must hold {', '.join(hints)}.")
    values = {key: _value(hints[key], item, f"{where}: {key}") for key, item in items.items()}
    try:
        return record(**values)
    except ConfigError as error:
        raise DataError(f"{where} holds a value that is not legal: {error}") from error


def _has_default(record: Any, key: str) -> bool:
    """Say whether a dataclass knows what stands in for an absent key."""
    fields = dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()
    absent = dataclasses.MISSING
    return any(
        f.name == key and (f.default is not absent or f.default_factory is not absent)
        for f in fields
    )


def _float(given: object, where: str) -> float:
    """Check a number; an integer is a number, a truth value is not."""
    if isinstance(given, str) and given in ODD_FLOATS:
        return ODD_FLOATS[given]
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise DataError(f"{where} is {given!r}; it must be a number.")
    return float(given)


def _expect(wanted: type, given: object, where: str) -> Any:
    """Check a value against a plain type; a truth value is no integer."""
    exact = not isinstance(given, bool) or wanted is bool
    if not exact or not isinstance(given, wanted):
        raise DataError(
            f"{where} is {given!r:.80} of type {type(given).__name__}; "
            f"it must be of type {wanted.__name__}."
        )
    return given
