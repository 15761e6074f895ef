"""The adviser's answer to the form."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from suffice.errors import ConfigError, unknown


def advice(request: Any) -> dict[str, Any]:
    """Ask the adviser and return what it says as plain data.

    Args:
        request: fields of the adviser's request; None = not given.

    Raises:
        ConfigError: if the adviser is not there, or for a field it does not know.
    """
    if not isinstance(request, dict):
        raise ConfigError("the adviser is asked with a form of fields.")
    try:
        adviser = importlib.import_module("suffice.advise")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "this version of suffice has no adviser; install one whose `suffice advise --help` "
            "answers."
        ) from error
    known = {field.name for field in dataclasses.fields(adviser.Request)}
    given = {name: value for name, value in request.items() if value is not None}
    for name in given:
        if name not in known:
            raise unknown("field of the adviser", name, known)
    return adviser.advise(adviser.Request(**given)).to_json()
