"""Tables of the papers: lines that are not comparable, ranks of intervals, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from suffice.comparison.report.sheet import Sheet


def mark_different(sheet: Sheet, *differences: str) -> Sheet:
    """Mark published lines as not comparable, in the title, the caption and their names.

    Example:
        >>> from suffice.comparison.report.sheet import Line
        >>> line = Line(cells=("printed",), is_reference=True)
        >>> mark_different(Sheet(title="a", columns=(), lines=(line,)), "size").lines[0].cells
        ('printed (other size)',)
    """
    label = next((line.cells[0] for line in sheet.lines if line.is_reference), None)
    if not differences or label is None:
        return sheet
    other = f"other {' and '.join(differences)}"
    name = f"{label} ({other})"
    return replace(
        sheet,
        title=f"{sheet.title}; the {label}'s lines: {other}",
        lines=tuple(
            replace(line, cells=(name, *line.cells[1:])) if line.is_reference else line
            for line in sheet.lines
        ),
        caption=sheet.caption.replace(f"Lines named {label}:", f"Lines named {name}:").rstrip()
        + f" The {label}'s lines are not to be held against ours, neither figures nor ranks.",
    )


def ranks_apart(
    intervals: Mapping[Any, tuple[float, float] | None],
) -> dict[Any, int | None]:
    """Rank intervals by name, 1 is lowest; one that overlaps another, or is None, has no rank.

    Example:
        >>> ranks_apart({"a": (3.0, 4.0), "b": (1.0, 2.0), "c": (3.5, 9.0), "d": None})
        {'a': None, 'b': 1, 'c': None, 'd': None}
    """
    known = {name: ends for name, ends in intervals.items() if ends is not None}

    def rank(name: Any) -> int | None:
        low, high = known[name]
        below = sum(other_high < low for _, other_high in known.values())
        above = sum(other_low > high for other_low, _ in known.values())
        return 1 + below if below + above == len(known) - 1 > 0 else None

    return {name: rank(name) if name in known else None for name in intervals}


def csv_text(fields: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return records as CSV, None as an empty field.

    Example:
        >>> csv_text(("a", "b"), [{"a": 1, "b": None}])
        'a,b\\n1,\\n'
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def markdown(sheet: Sheet) -> list[str]:
    """Return the lines of a table in Markdown, without title and caption."""
    rows = [sheet.columns, *(line.cells for line in sheet.lines)]
    head, *body = ["| " + " | ".join(cells) + " |" for cells in rows]
    return [head, "|" + "---|" * len(sheet.columns), *body]
