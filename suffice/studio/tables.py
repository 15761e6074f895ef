"""The tables of this package, which the page reads as well."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from suffice.utils.files import parse_json


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of the package."""
    return parse_json(resources.files("suffice.studio").joinpath(f"{name}.json").read_text("utf-8"))
