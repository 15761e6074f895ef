"""Counts the memory of a decoder from its configuration; the page reads the same tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from suffice.utils.files import packaged

ENGINES = ("suffice", "llama.cpp", "vllm")
"""Programs that allocate a KV cache."""


@cache
def table(name: str) -> dict[str, Any]:
    """Return a table of the package."""
    return packaged("choose", "fits", f"{name}.json")
