"""What the calculator should show of a decoder, as the library counts it."""

from __future__ import annotations

from typing import Any

from suffice.choose.fits import table
from suffice.models.configurations import published

CALCULATOR = table("calculator")
EMPTY: dict[str, Any] = CALCULATOR["defaults"]
PUBLISHED = {row["title"]: row for row in published() if "title" in row}


def layers_of(sizes: dict[str, Any]) -> list[bool]:
    """Return whether each layer is a full one."""
    model = EMPTY | sizes
    depth, every, count = model["layers"], model["full_every"], model["full_count"]
    if count:
        return [number >= depth - count for number in range(depth)]
    return [bool(every) and (number + 1) % every == 0 for number in range(depth)]
