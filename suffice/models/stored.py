"""A model's sizes as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from suffice.errors import ConfigError, unknown

C = TypeVar("C")


def to_json(config: Any) -> dict[str, Any]:
    """Return the fields of a frozen dataclass of numbers and texts."""
    return dataclasses.asdict(config)


def from_json(cls: type[C], data: Any) -> C:
    """Rebuild a dataclass from `to_json`'s data.

    Raises:
        ConfigError: for data that is no dictionary, unknown fields, missing ones, or values that
            the class refuses.
    """
    name = cls.__name__
    if not isinstance(data, dict):
        raise ConfigError(f"{name} is stored as a dictionary of its fields, got {data!r}.")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise unknown(f"field of {name}", key, fields)
    required = {key for key, f in fields.items() if f.default is dataclasses.MISSING}
    missing = sorted(required - data.keys())
    if missing:
        raise ConfigError(f"a stored {name} needs {' and '.join(missing)}.")
    return cls(**data)
