"""What is asked of a table of cells, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from suffice.data.own_files import digest
from suffice.data.own_files import found as found_at
from suffice.errors import ConfigError
from suffice.measure.plan import Plan
from suffice.measure.results import Cell
from suffice.recipes import SCALES, Recipe, recipe
from suffice.recipes.own_data import of_user
from suffice.reproduce.finished import Key, in_folder, joined
from suffice.reproduce.published import Published, cells_of, published
from suffice.reproduce.table import BASELINE, Table

FOLDER = Path("runs") / "reproduce"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A table at a scale, with rows and seeds.

    Args:
        table: which.
        recipe: of its cells, at the scale.
        heads: of its rows.
        seeds: of each row.
        folder: the working folder.
        kept: what was published, None if nothing.
        finished: cells that need not be trained.
        data: where files of the user's lie that it reads, None for the task's own.
    """

    table: Table
    recipe: Recipe
    heads: tuple[int, ...]
    seeds: int
    folder: Path
    kept: Published | None
    finished: tuple[Cell, ...]
    data: str | None = None

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
    def shown(self) -> list[Cell]:
        """The finished cells that the rows are made of."""
        wanted = set(self.plan.cells)
        return [cell for cell in self.finished if cell.key in wanted]

    @property
    def missing(self) -> list[Key]:
        """What is not finished, in the order in which it is trained."""
        there = {cell.key for cell in self.finished}
        return [key for key in self.plan.cells if key not in there]

    def again(self) -> Request:
        """Look once more at what is finished."""
        found = joined(in_folder(self.folder, self.plan), self.finished)
        return replace(self, finished=tuple(found))


def ask(
    table: Table,
    *,
    scale: str | None = None,
    heads: tuple[int, ...] | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    data: str | None = None,
) -> Request:
    """Return a request, with what is finished for it.

    Args:
        table: one that shows cells.
        scale: of its recipe; the published one unless told, else the paper's, as with data.
        heads: instead of the table's.
        seeds: instead of the table's.
        out: working folder instead of the usual.
        data: the user's own files instead of the task's; their cells have a folder of their own,
            and nothing that is published counts.

    Raises:
        ConfigError: if the recipe is not there, or something does not fit.
        DataError: if a file is truncated or altered, or the user's files are not there.
    """
    if not table.known:
        raise ConfigError(
            f"table {table.name} needs recipe {table.recipe}, which is not there yet."
        )
    kept = published(table) if data is None else None
    chosen = scale or (kept.scale if kept else SCALES[0])
    made = recipe(table.recipe, scale=chosen)
    suffix = "" if chosen == SCALES[0] else f"-{chosen}"
    if data is not None:
        data = found_at(data)
        made = of_user(made, data)
        suffix += f"-{Path(data).name}-{digest(data)[:8]}"
    found = Request(
        table=table,
        recipe=made,
        heads=heads or table.heads,
        seeds=seeds or table.seeds,
        folder=out or FOLDER / f"{table.store}{suffix}",
        kept=kept,
        finished=tuple(cells_of(kept, made)),
        data=data,
    )
    return found.again()
