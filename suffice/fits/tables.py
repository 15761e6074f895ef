"""The tables of this package, which the page reads as well."""

from __future__ import annotations

from functools import cache
from typing import Any

from suffice.utils.files import packaged

ENGINES = ("suffice", "llama.cpp", "vllm")
"""Programs that allocate a KV cache."""


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of the package."""
    return packaged("fits", f"{name}.json")
