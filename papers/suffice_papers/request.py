"""A table of cells at a scale, with its finished and its missing cells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from suffice.comparison.answers import Key
from suffice.comparison.jobs import Execution, cell_name
from suffice.comparison.plan import Plan
from suffice.comparison.report.sheet import Column, Sheet, sheet_of
from suffice.comparison.results import Cell, Tuned, cell_path, read_cell
from suffice.data.files import digest, resolve
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import SCALES, Recipe, recipe
from suffice.train.recipes.own_data import of_user
from suffice_papers.folder import run_cells
from suffice_papers.published import Published
from suffice_papers.results import cells_of, in_folder, joined, published
from suffice_papers.tables import BASELINE, Measure, Table

FOLDER = Path("runs") / "reproduce"


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """A table at a scale, with rows and seeds."""

    table: Table  # table that is asked for
    recipe: Recipe  # recipe of its cells, at the scale
    heads: tuple[int, ...]  # heads of its rows
    seeds: int  # seeds of each row
    folder: Path  # the working folder
    published: Published | None  # the published cells, None if there are none
    finished: tuple[Cell, ...]  # cells that need not be trained
    data: str | None = None  # path of the user's files that it reads, None for the task's own
    # learning rates of its rows; those that it lacks have the recipe's
    tuned: tuple[Tuned, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan that has these cells."""
        return Plan(
            recipe=self.recipe,
            mechanisms=self.table.mechanisms,
            heads=self.heads,
            seeds=self.seeds,
            baseline=BASELINE,
        )

    @property
    def wanted(self) -> list[Key]:
        """All cells in the order of training."""
        further = range(self.seeds, self.seeds + self.table.further)
        return [*self.plan.cells, *((BASELINE, h, s) for s in further for h in self.heads)]

    @property
    def row_cells(self) -> list[Cell]:
        """The finished cells of the rows."""
        wanted = set(self.wanted)
        return [cell for cell in self.finished if cell.key in wanted]

    @property
    def missing(self) -> list[Key]:
        """Unfinished cells, in the order of training."""
        there = {cell.key for cell in self.finished}
        return [key for key in self.wanted if key not in there]

    def again(self) -> TableRequest:
        """Return the request with the cells that are finished by now."""
        cells = joined(in_folder(self.folder, self.plan), self.finished)
        return replace(self, finished=tuple(cells))


def request_cells(
    table: Table,
    *,
    scale: str | None = None,
    heads: tuple[int, ...] | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    data: str | None = None,
) -> TableRequest:
    """Return a request, with what is finished for it."""
    content = published(table) if data is None else None
    chosen_scale = scale or (content.scale if content else SCALES[0])
    chosen_recipe = recipe(table.recipe, scale=chosen_scale)
    suffix = "" if chosen_scale == SCALES[0] else f"-{chosen_scale}"
    if data is not None:
        data = resolve(data)
        chosen_recipe = of_user(chosen_recipe, data)
        suffix += f"-{Path(data).name}-{digest(data)[:8]}"
    request = TableRequest(
        table=table,
        recipe=chosen_recipe,
        heads=heads or table.heads,
        seeds=seeds or table.seeds,
        folder=out or FOLDER / f"{table.store}{suffix}",
        published=content,
        finished=tuple(cells_of(content, chosen_recipe)),
        data=data,
    )
    return request.again()


AGAIN = "again"  # folder of such cells, inside the working folder


def retrain(
    request: TableRequest, key: Key, execution: Execution, *, console: Console, command: str
) -> Sheet:
    """Train a cell again and lay both out."""
    if key[0] not in request.table.mechanisms:
        raise ConfigError(
            f"{request.table.name} has no row {key[0]!r}; its mechanisms are "
            f"{', '.join(request.table.mechanisms)}."
        )
    folder = request.folder / AGAIN
    path = cell_path(folder, *key)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot replace {path} ({error.strerror}); choose another folder with --out."
        ) from error
    run_cells(request.plan, [key], folder, execution, console=console, command=command)
    now = read_cell(folder, *key)
    if now is None:
        raise DataError(f"{cell_name(key)} was not begun in time; give more --max-minutes.")
    before = next((cell for cell in request.finished if cell.key == key), None)
    return _sheet(request, key, before, now)


def _sheet(request: TableRequest, key: Key, before: Cell | None, now: Cell) -> Sheet:
    def text(measure: Measure, cell: Cell | None) -> str:
        value = None if cell is None else cell.figure(measure.name)
        return "" if value is None else measure.write(value)

    def change(measure: Measure) -> str:
        values = [None if cell is None else cell.figure(measure.name) for cell in (before, now)]
        return "" if None in values else f"{values[1] - values[0]:+.4g}"

    return sheet_of(
        f"{request.table.name}: {cell_name(key)}, trained twice",
        (
            Column(title="figure", cell=lambda measure: measure.title),
            Column(title="finished", cell=lambda measure: text(measure, before)),
            Column(title="again", cell=lambda measure: text(measure, now)),
            Column(title="difference", cell=change),
        ),
        request.table.columns,
        caption="Equal machines, versions and threads give equal scores; times differ.",
    )
