"""Addresses of the studio: what is edited stands behind #tab?."""

from __future__ import annotations

import base64
import json
from typing import Any


def link(tab: str, **state: Any) -> str:
    """Return the part of an address that opens a tab with a state."""
    packed = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
    return f"#{tab}?{packed}"


def linked(address: str) -> dict[str, Any]:
    """Return the state in an address."""
    packed = address.partition("#")[2].partition("?")[2]
    return json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
