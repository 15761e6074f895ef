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
    title: str
    cell: Callable[[Any], str]  # text of a row
    reference: Callable[[Any], str] = lambda _row: ""  # text of the published row below a row
    words: bool = False  # whether it holds words, which are aligned left and may be wrapped
    # number by which the rows of a group are ranked; None in any of them: no ranks
    value: Callable[[Any], float | None] = lambda _row: None
    write: Callable[[float], str] = str  # text of that number; equal texts share a rank
    rising: bool = False  # whether more is better

    def texts(self, rows: Sequence[Any], group: Callable[[Any], object]) -> list[str]:
        """Return the text of each row, with its rank in its group where there is one."""
        rank_of: dict[int, int | None] = {}
        for name in dict.fromkeys(map(group, rows)):
            values = {i: self.value(row) for i, row in enumerate(rows) if group(row) == name}
            if None not in values.values():
                rank_of |= ranks(values, self.write, rising=self.rising)
        return [self.cell(row) + rank_text(rank_of.get(i)) for i, row in enumerate(rows)]


def ranks(
    values: Mapping[Any, float | None], write: Callable[[float], str], *, rising: bool = False
) -> dict[Any, int | None]:
    """Rank values by their texts, 1 is best; None without a value or without a rival.

    Example:
        >>> ranks({"a": 3.0, "b": 2.0, "c": 2.0, "d": None}, "{:.0f}".format)
        {'a': 3, 'b': 1, 'c': 1, 'd': None}
    """
    known = sorted((v for v in values.values() if v is not None), reverse=rising)
    texts = [write(value) for value in known]
    ranked = {k: 1 + texts.index(write(v)) for k, v in values.items() if v is not None}
    return dict.fromkeys(values) | (ranked if len(known) > 1 else {})


def rank_text(rank: int | None) -> str:
    return "" if rank is None else f" ({rank})"


@dataclass(frozen=True, kw_only=True)
class Line:
    cells: tuple[str, ...]
    is_reference: bool = False  # whether its figures are published ones
    starts_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()  # columns of words
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
    """Return a table whose columns read rows; the first column names the row.

    Rows of one group stand together and are ranked among each other. The published figures of a
    row, its `reference`, have a `label` and a `citation`; they follow it.
    """
    texts = [column.texts(rows, group) for column in columns]
    lines: list[Line] = []
    citations: dict[str, str] = {}
    for index, row in enumerate(rows):
        starts = index > 0 and group(row) != group(rows[index - 1])
        lines.append(Line(cells=tuple(text[index] for text in texts), starts_group=starts))
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
        # names and words may be wrapped, numbers and heads may not
        text = column in sheet.words or i == 0
        cells = [line.cells[i] for line in sheet.lines if i > 0]
        table.add_column(
            Text(column),
            justify="left" if text else "right",
            no_wrap=not text,
            min_width=max(len(word) for word in " ".join([column, *cells]).split(" ")),
            overflow="fold",
        )
    for line in sheet.lines:
        if line.starts_group:
            table.add_section()
        cells = [Text(cell, style=STYLES.get(cell.partition(":")[0], "")) for cell in line.cells]
        if line.is_reference:
            cells[0] = Text(f"  {line.cells[0]}")
        table.add_row(*cells, style=DIM if line.is_reference else None)
    return table
