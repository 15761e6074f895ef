"""What a table of cells shows: its rows, and the scale, machine and minutes behind them."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from suffice.measure.decode import encode
from suffice.measure.report.lines import Sheet, beside
from suffice.recipes import SCALES, SMALL
from suffice.reproduce.finished import Key, machine_of, trained_seconds
from suffice.reproduce.layout import sheet
from suffice.reproduce.request import Request
from suffice.reproduce.rows import Row, rows

FIELDS = ("n", "mean", "low", "high", "rank", "paper", "paper_rank")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table of cells, ready to be printed or written.

    Args:
        request: what was asked.
        rows: of ours and the paper's.
        machine: facts about the machines that trained, None where nothing was trained.
        minutes: of training behind the cells shown.
    """

    request: Request
    rows: list[Row]
    machine: dict[str, Any] | None
    minutes: float

    @property
    def missing(self) -> list[Key]:
        """Cells of these rows that were not run."""
        return self.request.missing

    def sheet(self) -> Sheet:
        """Lay the table out as the paper does."""
        table = self.request.table
        made = sheet(
            title_of(self.request),
            table.columns,
            self.rows,
            source=table.source,
            notes=self._notes(),
        )
        return beside(made, *differs(self.request))

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
            "missing": [list(key) for key in self.missing],
        }

    def _notes(self) -> list[str]:
        """Say what stands behind the figures and what does not."""
        notes = []
        table = self.request.table
        if "size" in differs(self.request):
            notes.append("The paper's models, rows and epochs are larger and more.")
        if "data" in differs(self.request):
            notes.append(f"The paper's figures are of {table.instead_of or table.more}.")
        signed = {
            name: line for cell in self.request.shown for name, line in cell.signatures.items()
        }
        notes += [f"{name}: {line}." for name, line in signed.items()]
        if self.machine is not None:
            minutes = f"{self.minutes:.0f}" if self.minutes >= 10 else f"{self.minutes:.1f}"
            notes.append(
                f"Ours: scale {self.request.recipe.scale}, {minutes} minutes of training on "
                f"{machine_line(self.machine)}."
            )
        if self.missing:
            wanted = len(self.request.plan.cells)
            notes.append(f"{len(self.missing)} of {wanted} cells were not run.")
        return notes


def show(request: Request) -> Shown:
    """Return what a request shows."""
    cells = request.shown
    machine = None
    if cells:
        machine = machine_of(request.folder, request.kept) or {}
    return Shown(
        request=request,
        rows=rows(request.table, cells, request.heads),
        machine=machine,
        minutes=sum(map(trained_seconds, cells)) / 60,
    )


def differs(request: Request) -> tuple[str, ...]:
    """Say in what the paper's figures differ from ours beside them: "size", "data", nothing."""
    table = request.table
    if not table.paper:
        return ()
    part = table.more and request.data is None
    found = {"size": request.recipe.scale != SCALES[0], "data": table.instead_of or part}
    return tuple(name for name, other in found.items() if other)


def title_of(request: Request) -> str:
    """Return what stands above a table of cells: what was trained, on what, at which scale."""
    recipe = request.recipe
    small = "" if recipe.scale == "paper" else f"; {SMALL}"
    own = "" if request.data is None else f"; data of the user: {Path(request.data).name}"
    paper = request.table.instead_of
    stands = "" if paper is None else f", in place of {paper}"
    return f"{request.table.name}: {recipe.title.removesuffix(f'; {SMALL}')}{stands}{own}{small}"


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


def to_csv(shown: list[Shown]) -> str:
    """Write one line for each figure of each row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    start = ["table", "scale", "mechanism", "heads", "figure"]
    writer.writerow([*start, *FIELDS, "paper_differs_in"])
    for part in shown:
        content = part.to_json()
        for row in content["rows"]:
            for name, figure in row["figures"].items():
                if figure["mean"] is None and figure["paper"] is None:
                    continue
                values = [figure[field] for field in FIELDS]
                start = [content["table"], content["scale"], row["mechanism"], row["heads"], name]
                written = ["" if value is None else value for value in values]
                writer.writerow([*start, *written, " and ".join(content["paper_differs_in"])])
    return stream.getvalue()


def _flat(figure: Any) -> dict[str, Any]:
    """Return a figure with its summary's fields beside the others."""
    ours = asdict(figure.ours) if figure.ours else dict.fromkeys(("n", "mean", "low", "high"))
    found = {
        **{name: ours[name] for name in ("n", "mean", "low", "high")},
        "rank": figure.rank,
        "paper": figure.paper,
        "paper_rank": figure.paper_rank,
    }
    return encode(found)
