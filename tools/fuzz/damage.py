"""Damage done to bytes, text and plain data, drawn from one random state."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (
    0, -1, 1, 2, 3, 7, 255, 1 << 15, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64, 1 << 70,
    -(1 << 63), 10**30, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
WORDS = (
    "", " ", "\0", "\n", "a" * 300, "../..", "/", "~", "\ud800", "é", "\u202e", "🙂", "%s", "{}",
    "<script>", "'", '"', ",", ";", "true", "nan", "None", "1e999", "0x10", "\\", "C:\\", "-", "--",
    "--help", ".", "NUL", "\ufeff",
)  # fmt: skip
ODD = (*NUMBERS, *WORDS, True, False, None, [], {}, [[]], [None], {"": None})


def odd(pick: random.Random) -> Any:
    """Return an unusual value, a copy: it may be changed afterwards."""
    return copy.deepcopy(pick.choice(ODD))


def bytes_of(pick: random.Random, content: bytes) -> bytes:
    """Return content with a few of its bytes changed, left out, repeated or cut off."""
    made = bytearray(content)
    for _ in range(pick.choice((1, 1, 2, 5))):
        at = pick.randrange(len(made) + 1)
        how = pick.randrange(6)
        if how == 0:
            del made[at:]
        elif how == 1:
            made[at : at + 1] = bytes([pick.randrange(256)])
        elif how == 2:
            made[at:at] = pick.randbytes(pick.choice((1, 2, 8)))
        elif how == 3:
            del made[at : at + pick.choice((1, 2, 8))]
        elif how == 4:
            made[at:at] = made[at : at + pick.choice((1, 8, 64))]
        else:
            made[at : at + 1] = pick.choice((b"\xff", b"\0", b'"', b"\n", b",", b"{", b"]", b"-"))
    return bytes(made)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of every value inside plain data, however deep it is nested."""
    found, open_values = [], [data]
    while open_values:
        inside = open_values.pop()
        if isinstance(inside, (dict, list)):
            keys = inside if isinstance(inside, dict) else range(len(inside))
            found += [(inside, key) for key in keys]
            open_values += [inside[key] for key in keys]
    return found


def data_of(pick: random.Random, data: Any) -> Any:
    """Return a copy of plain data with a value or two changed, left out, doubled or nested."""
    made = copy.deepcopy(data)
    for _ in range(pick.choice((1, 1, 2))):
        all_places = places(made)
        if not all_places:
            return odd(pick)
        inside, key = pick.choice(all_places)
        how = pick.randrange(7)
        if how == 0:
            del inside[key]
        elif how == 1:
            inside[key] = pick.choice(NUMBERS)
        elif how == 2:
            other, name = pick.choice(all_places)
            inside[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other)
        elif how == 3:
            for _ in range(pick.choice((1, 3, 60))):
                inside[key] = [inside[key]]
        elif how == 4 and isinstance(inside, dict):
            inside[str(odd(pick))] = odd(pick)
        elif how == 5 and isinstance(inside, list):
            inside *= pick.choice((2, 20))
        else:
            inside[key] = odd(pick)
    return made


def json_of(pick: random.Random, data: Any) -> bytes:
    """Return damaged data as JSON, sometimes with damaged bytes, too."""
    text = json.dumps(data_of(pick, data) if pick.random() < 0.9 else data)
    content = text.encode(errors="surrogatepass")
    return bytes_of(pick, content) if pick.random() < 0.2 else content
