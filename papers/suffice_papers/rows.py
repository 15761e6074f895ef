"""The rows of a table of cells, and the scale, machine and minutes behind them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suffice.comparison.report.sheet import Column as SheetColumn
from suffice.comparison.report.sheet import Sheet, rank_text, sheet_of
from suffice.comparison.results import Cell
from suffice.train.recipes import SCALES, SMALL
from suffice.utils.records import encode
from suffice.utils.statistics import Summary
from suffice_papers.references import Reference, reference
from suffice_papers.request import TableRequest
from suffice_papers.results import machine_of
from suffice_papers.sheets import csv_text, mark_different
from suffice_papers.tables import Measure, Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a row."""

    ours: Summary | None
    rank: int | None
    paper: float | None
    paper_rank: int | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism with a number of heads."""

    mechanism: str
    num_heads: int
    seeds: int
    figures: dict[str, Figure]
    paper: Reference | None

    @property
    def label(self) -> str:
        """Name of the paper's line."""
        return self.paper.label

    @property
    def citation(self) -> str:
        """Where the paper's line comes from."""
        return self.paper.citation


def rows(table: Table, cells: list[Cell], heads: tuple[int, ...] | None = None) -> list[Row]:
    """Build the rows of a table, grouped by heads."""
    return [row for num_heads in heads or table.heads for row in _group(table, num_heads, cells)]


def _group(table: Table, heads: int, cells: list[Cell]) -> list[Row]:
    cells_by = {
        name: [c for c in cells if (c.mechanism, c.num_heads) == (name, heads)]
        for name in table.mechanisms
    }
    papers = {
        name: reference(table.paper, name, heads) if table.paper else None for name in cells_by
    }
    figures: dict[str, dict[str, Figure]] = {name: {} for name in cells_by}
    for column in table.columns:
        ours = {name: column.over(of_mechanism) for name, of_mechanism in cells_by.items()}
        theirs = {name: column.theirs(row) for name, row in papers.items()}
        our_ranks, paper_ranks = column.ranks_over(ours), column.ranks(theirs)
        for name, of_row in figures.items():
            of_row[column.name] = Figure(
                ours=ours[name],
                rank=our_ranks[name],
                paper=theirs[name],
                paper_rank=paper_ranks[name],
            )
    return [
        Row(
            mechanism=name,
            num_heads=heads,
            seeds=len(cells_by[name]),
            figures=figures[name],
            paper=papers[name],
        )
        for name in cells_by
    ]


def sheet(title: str, measures: tuple[Measure, ...], rows: list[Row], *, notes: list[str]) -> Sheet:
    """Lay out rows of cells."""
    columns = (
        SheetColumn(title="mechanism", cell=lambda row: row.mechanism),
        SheetColumn(title="heads", cell=lambda row: str(row.num_heads)),
        SheetColumn(title="seeds", cell=lambda row: str(row.seeds or "")),
        *(_column(measure) for measure in measures if _has_figures(measure, rows)),
    )
    caption = (
        "Mean over seeds ± half of the 95% t interval; (rank) among equal heads; accuracies in "
        "percent. "
    )
    if any(measure.time for measure in measures):
        caption += (
            "Times: geometric mean, from 3 seeds on with its 95% interval, and a rank where that "
            "overlaps no other. "
        )
    return sheet_of(
        title,
        columns,
        rows,
        group=lambda row: row.num_heads,
        reference=lambda row: None if row.paper is None else row,
        caption=(caption + " ".join(notes)).rstrip(),
    )


def _has_figures(measure: Measure, rows: list[Row]) -> bool:
    figures = [row.figures[measure.name] for row in rows]
    return any(figure.ours is not None or figure.paper is not None for figure in figures)


def _column(measure: Measure) -> SheetColumn:
    def cell(row: Row) -> str:
        figure = row.figures[measure.name]
        if figure.ours is None:
            return ""
        text = measure.write(figure.ours.mean) + measure.interval(figure.ours)
        return text + rank_text(figure.rank)

    def paper(row: Row) -> str:
        figure = row.figures[measure.name]
        return (
            ""
            if figure.paper is None
            else measure.write(figure.paper) + rank_text(figure.paper_rank)
        )

    return SheetColumn(title=measure.title, cell=cell, reference=paper)


FIELDS = ("n", "mean", "low", "high", "rank", "paper", "paper_rank")


@dataclass(frozen=True, kw_only=True)
class CellTable:
    """A table of cells, ready to be printed or written."""

    request: TableRequest
    rows: list[Row]
    machine: dict[str, Any] | None
    minutes: float

    def sheet(self) -> Sheet:
        """Lay the table out as the paper does."""
        table = self.request.table
        laid_out = sheet(
            title_of(self.request),
            table.columns,
            self.rows,
            notes=self._notes(),
        )
        return mark_different(laid_out, *differs(self.request))

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain data, unrounded; numbers that JSON lacks are words."""
        return {
            "table": self.request.table.name,
            "title": self.request.recipe.title,
            "source": self.request.table.source,
            "recipe": self.request.recipe.name,
            "scale": self.request.recipe.scale,
            "data": self.request.data,
            "paper_differs_in": list(differs(self.request)),
            "machine": self.machine,
            "minutes": round(self.minutes, 2),
            "rows": [
                {
                    "mechanism": row.mechanism,
                    "heads": row.num_heads,
                    "seeds": row.seeds,
                    "figures": {name: _flat(figure) for name, figure in row.figures.items()},
                }
                for row in self.rows
            ],
            "missing": [list(key) for key in self.request.missing],
        }

    def _notes(self) -> list[str]:
        notes = []
        table = self.request.table
        if "size" in differs(self.request):
            notes.append("The paper's models, rows and epochs are larger and more.")
        if "data" in differs(self.request):
            notes.append(f"The paper's figures are of {table.instead_of or table.more}.")
        signed = {
            name: line for cell in self.request.row_cells for name, line in cell.signatures.items()
        }
        notes += [f"{name}: {line}." for name, line in signed.items()]
        if self.machine is not None:
            notes.append(
                f"Ours: scale {self.request.recipe.scale}, {minutes_text(self.minutes)} minutes of "
                f"training on {machine_line(self.machine)}."
            )
        if missing := self.request.missing:
            wanted = len(self.request.plan.cells)
            notes.append(f"{len(missing)} of {wanted} cells were not run.")
        return notes


def cell_table(request: TableRequest) -> CellTable:
    """Return what a request shows."""
    cells = request.row_cells
    machine = None
    if cells:
        machine = machine_of(request.folder, request.published) or {}
    return CellTable(
        request=request,
        rows=rows(request.table, cells, request.heads),
        machine=machine,
        minutes=sum(cell.cost_seconds for cell in cells) / 60,
    )


def differs(request: TableRequest) -> tuple[str, ...]:
    """Say in what the paper's figures differ from ours: "size", "data", nothing."""
    table = request.table
    if not table.paper:
        return ()
    part = table.more and request.data is None
    differences = {"size": request.recipe.scale != SCALES[0], "data": table.instead_of or part}
    return tuple(name for name, other in differences.items() if other)


def title_of(request: TableRequest) -> str:
    """Return what stands above a table of cells: what was trained, on what, at which scale."""
    recipe = request.recipe
    small = "" if recipe.scale == "paper" else f"; {SMALL}"
    data = "" if request.data is None else f"; data of the user: {Path(request.data).name}"
    paper = request.table.instead_of
    stands = "" if paper is None else f", in place of {paper}"
    return f"{request.table.name}: {recipe.title.removesuffix(f'; {SMALL}')}{stands}{data}{small}"


def machine_line(machine: dict[str, Any]) -> str:
    """Name a machine in a line.

    Example:
        >>> machine_line({"cpu": "Some CPU", "cores": 2, "threads": 1, "gpu": None})
        'Some CPU (2 cores, 1 thread each)'
    """
    if not machine:
        return "an unknown machine"
    cores, threads = machine.get("cores"), machine.get("threads")
    parts = f"{cores} cores, {threads} thread{'s' * (threads != 1)} each"
    gpu = machine.get("gpu")
    return f"{machine.get('cpu') or 'an unknown processor'} ({parts}){f', {gpu}' if gpu else ''}"


def minutes_text(minutes: float) -> str:
    """Write minutes, tenths of them below ten."""
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


def to_csv(shown: list[CellTable]) -> str:
    """Write one line for each figure of each row."""
    fields = ("table", "scale", "mechanism", "heads", "figure", *FIELDS, "paper_differs_in")
    records = []
    for part in shown:
        content = part.to_json()
        for row in content["rows"]:
            records += [
                {
                    "table": content["table"],
                    "scale": content["scale"],
                    "mechanism": row["mechanism"],
                    "heads": row["heads"],
                    "figure": name,
                    **figure,
                    "paper_differs_in": " and ".join(content["paper_differs_in"]),
                }
                for name, figure in row["figures"].items()
                if figure["mean"] is not None or figure["paper"] is not None
            ]
    return csv_text(fields, records)


def _flat(figure: Any) -> dict[str, Any]:
    ours = asdict(figure.ours) if figure.ours else dict.fromkeys(("n", "mean", "low", "high"))
    fields = {**ours, "rank": figure.rank, "paper": figure.paper, "paper_rank": figure.paper_rank}
    return encode({name: fields[name] for name in FIELDS})
