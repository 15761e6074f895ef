"""Tables as columns over rows, rendered for the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

PAPER = "paper"  # instead of a mechanism's name, before the paper's own figures
DIM = "dim"
STYLES = {
    "suffices": "green",
    "does not suffice": "red",
    "better": "green",
    "worse": "red",
    "undecided": "yellow",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    cell: Callable[[Any], str]
    paper: Callable[[Any], str] = lambda _row: ""
    words: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table."""

    cells: tuple[str, ...]
    from_paper: bool = False
    starts_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table as texts, ready to be rendered."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()
    caption: str = ""


def sheet_of(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    group: Callable[[Any], object] = lambda _row: None,
    in_paper: Callable[[Any], bool] = lambda _row: False,
    caption: str = "",
) -> Sheet:
    """Lay rows out in columns.

    Example:
        >>> square = Column(title="square", cell=lambda n: str(n * n))
        >>> sheet = sheet_of("squares", (Column(title="n", cell=str), square), [2, 3])
        >>> [line.cells for line in sheet.lines]
        [('2', '4'), ('3', '9')]
    """
    lines: list[Line] = []
    for place, row in enumerate(rows):
        starts = place > 0 and group(row) != group(rows[place - 1])
        cells = tuple(column.cell(row) for column in columns)
        lines.append(Line(cells=cells, starts_group=starts))
        if in_paper(row):
            theirs = (PAPER, *(column.paper(row) for column in columns[1:]))
            lines.append(Line(cells=theirs, from_paper=True))
    return Sheet(
        title=title,
        columns=tuple(column.title for column in columns),
        lines=tuple(lines),
        words=tuple(column.title for column in columns if column.words),
        caption=caption,
    )


def mark_different(sheet: Sheet, *differences: str) -> Sheet:
    """Mark the paper's lines as not comparable, in the title, the caption and their names.

    Example:
        >>> sheet = Sheet(title="a", columns=(), lines=(Line(cells=("paper",), from_paper=True),))
        >>> mark_different(sheet, "size").lines[0].cells
        ('paper (other size)',)
    """
    if not differences or not any(line.from_paper for line in sheet.lines):
        return sheet
    other = f"other {' and '.join(differences)}"
    name = f"{PAPER} ({other})"
    return replace(
        sheet,
        title=f"{sheet.title}; the paper's lines: {other}",
        lines=tuple(
            replace(line, cells=(name, *line.cells[1:])) if line.from_paper else line
            for line in sheet.lines
        ),
        caption=sheet.caption.replace(f"Lines named {PAPER}:", f"Lines named {name}:").rstrip()
        + " The paper's lines are not to be held against ours, neither figures nor ranks.",
    )


def ranks(
    values: Mapping[Any, float | None], write: Callable[[float], str], *, rising: bool = False
) -> dict[Any, int | None]:
    """Rank values by name, 1 is best.

    Args:
        values: None where there is none, which has no rank; nor has one value alone.
        write: a value as text; values that are written alike share a rank.
        rising: whether more is better.

    Example:
        >>> ranks({"a": 3.0, "b": 2.0, "c": 2.0, "d": None}, "{:.0f}".format)
        {'a': 3, 'b': 1, 'c': 1, 'd': None}
    """
    sign = -1 if rising else 1
    known = {name: sign * value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return dict.fromkeys(values)
    best: dict[str, float] = {}
    for value in sorted(known.values()):
        best.setdefault(write(sign * value), value)
    places = {name: best[write(sign * value)] for name, value in known.items()}
    return {
        name: 1 + sum(other < places[name] for other in places.values()) if name in places else None
        for name in values
    }


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
        if name not in known or len(known) < 2:
            return None
        low, high = known[name]
        others = [ends for other, ends in known.items() if other != name]
        below = sum(other_high < low for _, other_high in others)
        above = sum(other_low > high for other_low, _ in others)
        return 1 + below if below + above == len(others) else None

    return {name: rank(name) for name in intervals}


def rich_table(sheet: Sheet) -> Table:
    """Return a table for the terminal; texts are never read as markup."""
    table = Table(
        title=Text(sheet.title, style="bold"),
        caption=Text(sheet.caption, style=DIM),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for i, column in enumerate(sheet.columns):
        words = i == 0 or column in sheet.words
        table.add_column(
            Text(column), justify="left" if words else "right", no_wrap=i == 0, overflow="fold"
        )
    for line in sheet.lines:
        if line.starts_group:
            table.add_section()
        cells = [Text(cell, style=STYLES.get(cell.partition(":")[0], "")) for cell in line.cells]
        if line.from_paper:
            cells[0] = Text(f"  {line.cells[0]}")
        table.add_row(*cells, style=DIM if line.from_paper else None)
    return table


def markdown(sheet: Sheet) -> list[str]:
    """Return the lines of a table in Markdown, without title and caption."""
    rows = [sheet.columns, *(line.cells for line in sheet.lines)]
    head, *body = ["| " + " | ".join(cells) + " |" for cells in rows]
    return [head, "|" + "---|" * len(sheet.columns), *body]


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
