"""Records: dataclasses with checked fields, serialised to JSON and back.

`check_fields` checks a settings object against its annotations, `decode` builds a record from what
a JSON file held and `encode` is its inverse, `check_keys` compares the keys of plain data with the
legal ones. `Axis` is the base of the values that a layer is composed of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import math
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, cast

from suffice.errors import ConfigError, DataError, SufficeError, did_you_mean, unknown

T = TypeVar("T")
V = TypeVar("V", bound="Axis")

NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    tuple: "a tuple",
    NoneType: "None",
}
MAX_SIZE = 1 << 62  # of a size: sums of two still fit 64 bits
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def is_whole(value: object, least: float = -math.inf) -> bool:
    """Return whether a value is a whole number, also NumPy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Return whether a value is a finite real number, also NumPy's; True and False are none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def field_errors(settings: Any) -> list[str]:
    """Return a sentence for each field of a dataclass that is not of its annotated type.

    Checked are bool, int, finite float, str, None, literals, axis values, other records, and tuples
    and unions of them. A whole number will do for a float; NumPy's numbers become Python's.
    """
    errors, hints = [], type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        try:
            converted = _convert(value, hint)
        except TypeError:
            errors.append(f"{field.name}={value!r} is not {_name_of(hint)}.")
        else:
            if field.name != "seed" and is_whole(converted) and abs(converted) > MAX_SIZE:
                digits = len(str(abs(converted))) if abs(converted) < 10**40 else "over 40"
                errors.append(f"{field.name} is a number of {digits} digits; give one of 62 bits.")
            if converted is not value:
                object.__setattr__(settings, field.name, converted)
    return errors


def check_fields(settings: Any) -> None:
    """Raise ConfigError for the `field_errors` of a dataclass; call it in `__post_init__`."""
    if errors := field_errors(settings):
        raise ConfigError(f"{type(settings).__name__}: {' '.join(errors)}")


@lru_cache(maxsize=1024)
def type_hints(record: type) -> dict[str, Any]:
    """Return the types of a class's annotations, written as text or not; Any if unresolvable."""
    hints = {}
    for base in reversed(record.__mro__):
        names = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, annotation in inspect.get_annotations(base).items():
            single = type(name, (), {"__annotations__": {name: annotation}})
            try:
                hints |= typing.get_type_hints(single, names)
            except NameError:
                hints[name] = Any
    return hints


def _convert(value: Any, hint: Any) -> Any:
    """Return a value of the hinted type, NumPy's numbers as Python's, or raise TypeError."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if _is_union(hint):
        for arm in inner:
            with contextlib.suppress(TypeError):
                return _convert(value, arm)
        raise TypeError
    if tuple in (hint, origin):
        return _convert_tuple(value, inner)
    if hint in (int, float):
        if not (is_whole(value) if hint is int else is_number(value)):
            raise TypeError
        if isinstance(value, (int, float)):
            return value
        return int(value) if isinstance(value, Integral) else float(value)
    record = isinstance(hint, type) and (issubclass(hint, Axis) or dataclasses.is_dataclass(hint))
    known = hint in NAMES or record
    if (known and not isinstance(value, hint)) or (origin is Literal and value not in inner):
        raise TypeError
    return value


def _convert_tuple(value: Any, inner: tuple[Any, ...]) -> Any:
    if not isinstance(value, tuple):
        raise TypeError
    if not inner:
        return value
    hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(hints) != len(value):
        raise TypeError
    converted = tuple(map(_convert, value, hints))
    return value if all(a is b for a, b in zip(value, converted, strict=True)) else converted


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (UnionType, typing.Union)


def _name_of(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if _is_union(hint):
        return " or ".join(_name_of(arm) for arm in inner if arm is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        items = inner[:1] if inner[-1] is Ellipsis else inner
        return f"a tuple of {', '.join(map(_name_of, items))}"
    return NAMES.get(hint) or f"a {getattr(hint, 'family', '') or hint.__name__}"


def check_keys(
    data: Mapping[str, Any],
    legal: Collection[str],
    required: Iterable[str] = (),
    *,
    where: str,
    error: type[SufficeError] = DataError,
) -> None:
    """Raise for an unknown key of plain data, naming the nearest legal one, or for missing ones."""
    for key in data:
        if key not in legal:
            hint = did_you_mean(key, legal)
            raise error(f"{where} has the unknown key {key!r}{hint} Legal: {', '.join(legal)}.")
    missing = [key for key in required if key not in data]
    if missing:
        raise error(f"{where} lacks {', '.join(missing)}; it must hold {', '.join(legal)}.")


def encode(value: Any) -> Any:
    """Return plain data with tuples as lists and non-finite floats as words.

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


def decode(
    record: type[T], data: object, *, where: str, error: type[SufficeError] = DataError
) -> T:
    """Build a record from plain data, each value of its annotated type."""
    origin, inner = typing.get_origin(record), typing.get_args(record)
    if record is Any:
        return data  # type: ignore[return-value]
    if _is_union(record):
        return _decode_union(inner, data, where, error)
    if origin is tuple:
        items = _expect(list, data, where, error)
        hints = inner[:1] * len(items) if inner[-1] is Ellipsis else inner
        if len(hints) != len(items):
            raise error(f"{where} holds {len(items)} items; it must hold {len(hints)}.")
        pairs = enumerate(zip(hints, items, strict=True))
        return tuple(  # type: ignore[return-value]
            decode(hint, item, where=f"{where}[{i}]", error=error) for i, (hint, item) in pairs
        )
    if origin is dict and inner[1] is not Any:
        items = _expect(dict, data, where, error)
        return {  # type: ignore[return-value]
            key: decode(inner[1], item, where=f"{where}: {key}", error=error)
            for key, item in items.items()
        }
    if dataclasses.is_dataclass(record) or typing.is_typeddict(record):
        return _decode_record(record, data, where, error)
    if record is float:
        return _decode_float(data, where, error)  # type: ignore[return-value]
    return _expect(origin or record, data, where, error)


def _decode_union(arms: tuple[Any, ...], data: object, where: str, error: type[Exception]) -> Any:
    if data is None and NoneType in arms:
        return None
    *others, last = (arm for arm in arms if arm is not NoneType)
    for arm in others:
        try:
            return decode(arm, data, where=where)
        except SufficeError:
            continue
    return decode(last, data, where=where, error=error)  # type: ignore[arg-type]


def _decode_record(record: Any, data: object, where: str, error: type[SufficeError]) -> Any:
    items = _expect(dict, data, where, error)
    hints = type_hints(record)
    if dataclasses.is_dataclass(record):
        hints = {field.name: hints[field.name] for field in dataclasses.fields(record)}
    optional = optional_fields(record)
    required = [key for key in hints if key not in optional]
    check_keys(items, hints, required, where=where, error=error)
    values = {
        key: decode(hints[key], item, where=f"{where}: {key}", error=error)
        for key, item in items.items()
    }
    try:
        return record(**values)
    except ConfigError as refusal:
        raise error(f"{where} holds a value that is not legal: {refusal}") from refusal


def optional_fields(record: Any) -> set[str]:
    """Return the fields of a dataclass that have a default, or of a TypedDict that may lack."""
    if typing.is_typeddict(record):
        return set(record.__optional_keys__)
    fields = dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()
    absent = dataclasses.MISSING
    return {f.name for f in fields if f.default is not absent or f.default_factory is not absent}


def _decode_float(data: object, where: str, error: type[SufficeError]) -> float:
    if isinstance(data, str) and data in NON_FINITE:
        return NON_FINITE[data]
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise error(f"{where} is {data!r:.80}; it must be a number.")
    try:
        return float(data)
    except OverflowError:  # a whole number of hundreds of digits
        raise error(f"{where} is larger than any float; give a smaller number.") from None


def _expect(wanted: Any, data: object, where: str, error: type[SufficeError]) -> Any:
    is_flag = isinstance(data, bool)
    if not isinstance(data, wanted) or is_flag is not (wanted is bool):
        raise error(
            f"{where} is {data!r:.80} of type {type(data).__name__}; "
            f"it must be of type {wanted.__name__}."
        )
    return data


def derived(value: Callable[[Any], T]) -> T:
    """Return a property, typed as its value: it stands where the base class has an attribute."""
    return cast("T", property(value))


class Axis:
    """Base of every axis value: a frozen dataclass with a JSON form.

    A subclass with `family=` begins a family with a separate table. Every other subclass is
    entered there by its name, unless it is the base of several: with `base=True`, or a name that
    begins with an underscore.

    Ops, exports and conversions know this library's values by their classes and compute a subclass
    as its parent, so others may subclass the bases alone.
    """

    family: ClassVar[str] = ""
    table: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls, family: str | None = None, *, base: bool = False) -> None:
        super().__init_subclass__()
        if family is not None:
            cls.family, cls.table = family, {}
            return
        if not _is_ours(cls):
            for parent in filter(_is_ours, cls.__mro__):
                if cls.table.get(parent.__name__) is parent:
                    raise ConfigError(
                        f"{cls.__name__} is a subclass of {parent.__name__}, and would be computed "
                        f"as {parent.__name__} whatever it defines; subclass a base of the "
                        f"{cls.family}s, or compose the values there are."
                    )
        if base or cls.__name__.startswith("_"):
            return
        other = cls.table.setdefault(cls.__name__, cls)
        same = (cls.__module__, cls.__qualname__)
        if (other.__module__, other.__qualname__) != same:
            raise ConfigError(
                f"{cls.family} {cls.__name__!r} is already defined in {other.__module__}; "
                "choose another class name."
            )
        cls.table[cls.__name__] = cls  # a reloaded module defines it again

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.text  # computed here, so that a compiled graph only reads it

    @cached_property
    def text(self) -> str:
        """The JSON form in one line: an operator of a compiled graph takes texts, not objects."""
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain data: its class name and its fields."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": type(self).__name__, **fields}

    @classmethod
    def from_json(cls: type[V], data: Any) -> V:
        """Rebuild a value of this family from `to_json`'s data."""
        if not isinstance(data, dict) or "name" not in data:
            raise ConfigError(
                f"a {cls.family} is stored as a dictionary with a 'name', got {data!r}."
            )
        name = data["name"]
        if not isinstance(name, str) or name not in cls.table:
            raise unknown(cls.family, name, cls.table)
        value, hints = cls.table[name], type_hints(cls.table[name])
        fields = {key: item for key, item in data.items() if key != "name"}
        legal = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        optional = optional_fields(value)
        required = [key for key in legal if key not in optional]
        check_keys(fields, legal, required, where=f"the stored {name}", error=ConfigError)
        return value(  # type: ignore[return-value]
            **{
                key: _from_plain(item, _family_of(hints[key]) or cls)
                for key, item in fields.items()
            }
        )

    def refuses_source(self) -> str | None:
        """Return why keys cannot come from another sequence than the queries; None if they can."""

    @classmethod
    def samples(cls) -> tuple[Axis, ...]:
        """Return small values of this class for the conformance tests."""
        return (cls(),)


def is_frozen_dataclass(value: type) -> bool:
    """Return whether the class itself, not a parent of it, is a frozen dataclass."""
    parameters = vars(value).get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def _is_ours(value: type) -> bool:
    return value.__module__.partition(".")[0] == __name__.partition(".")[0]


def _plain(item: Any) -> Any:
    if isinstance(item, Axis):
        return item.to_json()
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item


def _from_plain(item: Any, family: type[Axis]) -> Any:
    if isinstance(item, dict):
        return family.from_json(item)
    if isinstance(item, list):
        return tuple(_from_plain(part, family) for part in item)
    return item


def _family_of(hint: Any) -> type[Axis] | None:
    if isinstance(hint, type) and issubclass(hint, Axis):
        return hint
    return next(filter(None, map(_family_of, typing.get_args(hint))), None)
