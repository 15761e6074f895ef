"""The fields of JSON that docs/verdict.md documents, held against real output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs/verdict.md"
TYPES = {"string": str, "number": int | float, "list": list, "object": dict, "null": type(None)}
WORDS = ("suffices", "does not suffice", "undecided")


def fields(table: int) -> dict[str, Any]:
    """Return the fields of the first or second table of the page, with their types."""
    rows = PAGE.read_text().partition("## As JSON")[2].split("| field | type | holds |")[table]
    found = {}
    for names, types in re.findall(r"^\| (`.*?`) \| (.*?) \|", rows, re.MULTILINE):
        each, of = re.findall(r"`(\w+)`", names), types.split(", ")
        for place, name in enumerate(each):
            words = of[min(place, len(of) - 1)].split(" or ")
            found[name] = tuple(TYPES[word] for word in words)
    return found


def check(document: dict[str, Any], verb: str) -> None:
    """Fail unless a document has exactly the documented fields, of their types."""
    ours = {"compare": {"words", "over_tasks"}, "verdict": {"results", "disagreements"}}[verb]
    wanted = {name: types for name, types in fields(1).items() if name not in ours}
    assert set(document) == set(wanted)
    inner = fields(2) | {name: fields(1)[name] for name in ("outcome", "reason", "sentence")}
    for one in (*document["comparisons"], *document.get("over_tasks", ())):
        assert set(one) == {*inner, "notes"}
        _typed(one, inner)
        assert all(m["outcome"] in WORDS for m in (one, *one["mechanisms"]))
    _typed(document, wanted)
    assert (document["schema"], document["version"]) == ("suffice verdict", 1)
    assert document["outcome"] in WORDS


def _typed(record: dict[str, Any], types: dict[str, Any]) -> None:
    for name, of in types.items():
        assert isinstance(record[name], of), (name, record[name])
