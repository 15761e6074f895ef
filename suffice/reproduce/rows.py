"""The rows of a table: ours averaged over seeds, the paper's beside, ranked among equal heads."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.measure.paper import PaperRow, paper_row
from suffice.measure.results import Cell
from suffice.measure.statistics import Summary, summarise
from suffice.reproduce.column import Column
from suffice.reproduce.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a row.

    Args:
        ours: over seeds, None where nothing was trained.
        rank: of ours among equal heads, 1 is best; None alone or unknown.
        paper: the paper's, None where it prints none.
        paper_rank: of the paper's figure among the paper's rows of equal heads.
    """

    ours: Summary | None
    rank: int | None
    paper: float | None
    paper_rank: int | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism with a number of heads.

    Args:
        mechanism: its name.
        num_heads: its heads.
        seeds: how many were trained.
        figures: by name of the column.
        paper: the paper's row, None where it has none.
    """

    mechanism: str
    num_heads: int
    seeds: int
    figures: dict[str, Figure]
    paper: PaperRow | None


def rows(table: Table, cells: list[Cell], heads: tuple[int, ...] | None = None) -> list[Row]:
    """Build the rows of a table, grouped by heads.

    Args:
        table: its mechanisms, heads and columns.
        cells: what is finished; rows without a cell are blank.
        heads: instead of the table's.
    """
    return [
        row
        for num_heads in heads or table.heads
        for row in _group(table, num_heads, [c for c in cells if c.num_heads == num_heads])
    ]


def _group(table: Table, heads: int, cells: list[Cell]) -> list[Row]:
    """Build the rows of equal heads."""
    own = {name: [cell for cell in cells if cell.mechanism == name] for name in table.mechanisms}
    papers = {
        name: paper_row(table.paper, name, heads) if table.paper else None
        for name in table.mechanisms
    }
    figures = {column.name: _figures(column, own, papers) for column in table.columns}
    return [
        Row(
            mechanism=name,
            num_heads=heads,
            seeds=len(own[name]),
            figures={column: by_name[name] for column, by_name in figures.items()},
            paper=papers[name],
        )
        for name in table.mechanisms
    ]


def _figures(
    column: Column, cells: dict[str, list[Cell]], papers: dict[str, PaperRow | None]
) -> dict[str, Figure]:
    """Return the figures of one column among equal heads, by mechanism."""
    ours = {name: over(column, own) for name, own in cells.items()}
    theirs = {name: column.theirs(row) for name, row in papers.items()}
    ranks = ranked({n: None if s is None else s.mean for n, s in ours.items()}, column)
    of_paper = ranked(theirs, column)
    return {
        name: Figure(
            ours=ours[name], rank=ranks[name], paper=theirs[name], paper_rank=of_paper[name]
        )
        for name in cells
    }


def over(column: Column, cells: list[Cell]) -> Summary | None:
    """Summarise a column over the seeds; None if a cell does not have it, or there is none."""
    values = [column.ours(cell) for cell in cells]
    return None if not values or None in values else summarise(values)


def ranked(values: dict[str, float | None], column: Column) -> dict[str, int | None]:
    """Rank values by name; what is written alike shares a place, None and one alone have none.

    Example:
        >>> from suffice.reproduce.column import PARAMETERS
        >>> ranked({"a": 3.0, "b": 2.0, "c": 2.0, "d": None}, PARAMETERS)
        {'a': 3, 'b': 1, 'c': 1, 'd': None}
    """
    sign = -1 if column.rising else 1
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return dict.fromkeys(values)
    best: dict[str, float] = {}
    for value in sorted(known.values(), key=lambda value: sign * value):
        best.setdefault(column.written(value), sign * value)
    places = {name: best[column.written(value)] for name, value in known.items()}
    return {
        name: 1 + sum(other < places[name] for other in places.values()) if name in places else None
        for name in values
    }
