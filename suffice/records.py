"""Checks the fields of a settings object against what they are declared to be."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from suffice.errors import ConfigError, DataError, unknown

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


V = TypeVar("V", bound="Axis")


class Axis:
    """Base of every axis value."""

    family: ClassVar[str] = ""
    table: ClassVar[dict[str, type[Axis]]] = {}
    nested: ClassVar[dict[str, type[Axis]]] = {}
    """Fields that hold a value of another family, and that family."""

    def __init_subclass__(cls, family: str | None = None) -> None:
        super().__init_subclass__()
        if family is not None:
            cls.family, cls.table = family, {}
        elif not cls.__name__.startswith("_"):
            cls._register()

    @classmethod
    def _register(cls) -> None:
        other = cls.table.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ConfigError(
                f"{cls.family} {cls.__name__!r} is already defined in {other.__module__}; "
                "choose another class name."
            )
        cls.table[cls.__name__] = cls

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.text  # made here, so that a compiled graph only reads it

    @cached_property
    def text(self) -> str:
        """The JSON form in one line: what an operator of a compiled graph can be given."""
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain data: its class name and its fields."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": type(self).__name__, **fields}

    @classmethod
    def from_json(cls: type[V], data: Any) -> V:
        """Rebuild a value of this family from `to_json`'s data.

        Raises:
            ConfigError: for an unknown name or field, or data that is not such a dictionary.
        """
        if not isinstance(data, dict) or "name" not in data:
            raise ConfigError(
                f"a {cls.family} is stored as a dictionary with a 'name', got {data!r}."
            )
        name = data["name"]
        if not isinstance(name, str) or name not in cls.table:
            raise unknown(cls.family, name, cls.table)
        value = cls.table[name]
        fields = {f.name for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        given = {key: item for key, item in data.items() if key != "name"}
        for key in given:
            if key not in fields:
                raise unknown(f"field of {name}", key, fields)
        missing = [
            f.name
            for f in dataclasses.fields(value)  # type: ignore[arg-type]
            if f.default is f.default_factory is dataclasses.MISSING and f.name not in given
        ]
        if missing:
            raise ConfigError(f"a stored {name} needs {' and '.join(missing)}.")
        return value(**{k: _value_axis(value.nested.get(k, cls), v) for k, v in given.items()})  # type: ignore[return-value]

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return small values of this class for the conformance tests."""
        return (cls(),)


def _plain(item: Any) -> Any:
    if isinstance(item, Axis):
        return item.to_json()
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item


def _value_axis(family: type[Axis], item: Any) -> Any:
    if isinstance(item, dict):
        return family.from_json(item)
    if isinstance(item, list):
        return tuple(_value_axis(family, part) for part in item)
    return item
