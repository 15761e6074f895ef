"""What all axis values share: a name in their family's table and a JSON form.

A family (patterns, projections, mixing, kernels, positions) is a subclass of `Axis` declared with
`family=...`; its values are frozen dataclasses below it. Defining a value is what registers it,
so a value written by a user is found, printed and stored like the built-in ones.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from suffice.errors import ConfigError, unknown
from suffice.fields import check_fields

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
        return value(**{k: _value(value.nested.get(k, cls), v) for k, v in given.items()})  # type: ignore[return-value]

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


def _value(family: type[Axis], item: Any) -> Any:
    if isinstance(item, dict):
        return family.from_json(item)
    if isinstance(item, list):
        return tuple(_value(family, part) for part in item)
    return item
