"""Tables as columns over rows, rendered for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

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
    title: str  # head of the column
    cell: Callable[[Any], str]  # text of a row
    # text of the published row that stands below a row
    reference: Callable[[Any], str] = lambda _row: ""
    words: bool = False  # whether it holds words, which are aligned left
    # number by which the rows of a group are ranked; None in any of them: no ranks
    value: Callable[[Any], float | None] = lambda _row: None
    # function from that number to text; numbers that are written alike share a rank
    write: Callable[[float], str] = str
    rising: bool = False  # whether more is better

    def texts(self, rows: Sequence[Any], group: Callable[[Any], object]) -> list[str]:
        """Return the text of each row, with its rank in its group where there is one."""
        values = [self.value(row) for row in rows]
        numbers: dict[int, int | None] = {}
        for name in dict.fromkeys(map(group, rows)):
            of_group = {i: values[i] for i, row in enumerate(rows) if group(row) == name}
            if None not in of_group.values():
                numbers |= ranks(of_group, self.write, rising=self.rising)
        return [self.cell(row) + rank_text(numbers.get(i)) for i, row in enumerate(rows)]


def rank_text(rank: int | None) -> str:
    """Write a rank behind a value; "" where there is none."""
    return "" if rank is None else f" ({rank})"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table; `is_reference` for published figures."""

    cells: tuple[str, ...]
    is_reference: bool = False
    starts_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
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
    reference: Callable[[Any], Any] = lambda _row: None,
    caption: str = "",
) -> Sheet:
    """Lay rows out in columns.

    Args:
        title: heading of the table.
        columns: columns from left to right; the first names the row.
        rows: objects that the columns read.
        group: rows of equal values stand together and are ranked among each other.
        reference: published figures of a row, which stand below it; they have a `label` and a
            `citation`.
        caption: explanation below the table.

    Example:
        >>> square = Column(title="square", cell=lambda n: str(n * n))
        >>> sheet = sheet_of("squares", (Column(title="n", cell=str), square), [2, 3])
        >>> [line.cells for line in sheet.lines]
        [('2', '4'), ('3', '9')]
    """
    texts = [column.texts(rows, group) for column in columns]
    lines: list[Line] = []
    citations: dict[str, str] = {}
    for place, row in enumerate(rows):
        starts = place > 0 and group(row) != group(rows[place - 1])
        lines.append(Line(cells=tuple(text[place] for text in texts), starts_group=starts))
        if (published := reference(row)) is not None:
            citations[published.citation] = published.label
            cells = (published.label, *(column.reference(published) for column in columns[1:]))
            lines.append(Line(cells=cells, is_reference=True))
    cited = "".join(f" Lines named {label}: {text}." for text, label in citations.items())
    return Sheet(
        title=title,
        columns=tuple(column.title for column in columns),
        lines=tuple(lines),
        words=tuple(column.title for column in columns if column.words),
        caption=caption + cited,
    )


def ranks(
    values: Mapping[Any, float | None], write: Callable[[float], str], *, rising: bool = False
) -> dict[Any, int | None]:
    """Rank values by name, 1 is best.

    Example:
        >>> ranks({"a": 3.0, "b": 2.0, "c": 2.0, "d": None}, "{:.0f}".format)
        {'a': 3, 'b': 1, 'c': 1, 'd': None}
    """
    known = [value for value in values.values() if value is not None]
    if len(known) < 2:
        return dict.fromkeys(values)
    texts = [write(value) for value in sorted(known, reverse=rising)]
    return {n: None if v is None else 1 + texts.index(write(v)) for n, v in values.items()}


def rich_table(sheet: Sheet, lines: box.Box | None = box.SIMPLE_HEAD) -> Table:
    """Return a table for the terminal; texts are never read as markup."""
    table = Table(
        title=Text(sheet.title, style="bold"),
        caption=Text(sheet.caption, style=DIM),
        box=lines,
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
        if line.is_reference:
            cells[0] = Text(f"  {line.cells[0]}")
        table.add_row(*cells, style=DIM if line.is_reference else None)
    return table
