"""The finished cells of a table: those that come with the package and those of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from suffice.comparison.plan import (
    Plan,
    Provenance,
    describe,
    read_provenance,
    run_folder,
    same_training,
)
from suffice.comparison.results import (
    Cell,
    DataFacts,
    Results,
    Tuned,
    cell_path,
    find_cells,
    read_cell,
    read_facts,
    read_results,
    with_rows,
)
from suffice.data import Dataset
from suffice.data.survey import survey
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import SCALES, Recipe
from suffice.utils.files import read_record, write_json
from suffice.utils.records import encode
from suffice_papers.folder import refuse_another
from suffice_papers.published import PackedAnswers, Published, path_of, read_published
from suffice_papers.tables import Table

R = TypeVar("R")
FOLDERS = re.compile(r"(?<![^\s='\"])/(?:[^\s/]+/)*")  # of an absolute path


def published(table: Table) -> Published | None:
    """Return the cells that were published for a table, None if none were."""
    name = published_name(table)
    return None if name is None else read_published(name)


def published_name(table: Table) -> str | None:
    """Return the name that a table's results are published by, None if there are none."""
    names = map(table.published_as, SCALES if table.trained else ())
    return next((name for name in names if path_of(name).exists()), None)


def publish(table: Table, content: Published) -> Path:
    """Write the results that come with the package and return their file."""
    results = replace(content.results, command=portable(content.results.command))
    answers = PackedAnswers.of(
        {cell_path(Path(), *key).stem: one for key, one in results.rows.items()}
    )
    return write_published(
        table.published_as(content.scale),
        {
            "scale": content.scale,
            "threads": content.threads,
            "recipe": content.recipe,
            "results": results.to_json(),
            "answers": None if answers is None else asdict(answers),
        },
    )


def portable(command: str) -> str:
    """Return a command without the folders of the machine it was given on.

    Example:
        >>> portable("suffice compare --recipe imdb --out /home/me/runs/imdb")
        'suffice compare --recipe imdb --out imdb'
    """
    return FOLDERS.sub("", command)


def write_published(store: str, content: dict[str, Any]) -> Path:
    """Write a file of the package's results."""
    path = path_of(store)
    if not (path.parents[3] / "pyproject.toml").exists():
        raise DataError(
            f"{path} belongs to an installed package; publish from a checkout of the source."
        )
    write_json(path, encode(content))
    return path


def read_stored(kind: type[R], store: str) -> R:
    """Return the record that comes with the package by a name; an empty one if there is none."""
    path = path_of(store)
    return (
        read_record(kind, path, advice="Delete it to make it again.") if path.exists() else kind()
    )


def document(name: str) -> Path:
    """Return a page of docs, there or not.

    Raises:
        DataError: without a checkout of the source.
    """
    docs = path_of("x").parents[3] / "docs"
    if not docs.is_dir():
        raise DataError(f"docs/{name} belongs to a checkout of the source; write it there.")
    return docs / name


def cells_of(content: Published | None, recipe: Recipe) -> list[Cell]:
    """Return the published cells of a recipe at its scale; none if they are of another."""
    if content is None or content.scale != recipe.scale:
        return []
    return list(content.results.cells) if same_training(content.recipe, recipe) else []


def in_folder(folder: Path, plan: Plan) -> list[Cell]:
    """Read every finished cell of a working folder; none if there is no such folder."""
    if not run_folder(folder).exists():
        return []
    refuse_another(folder, plan)
    cells = [read_cell(folder, *key) for key in find_cells(folder)]
    return [cell for cell in cells if cell is not None]


def joined(first: Iterable[Cell], second: Iterable[Cell]) -> list[Cell]:
    """Return the cells of both, each once; where both have one, the first's is taken."""
    by_key = {cell.key: cell for cell in second} | {cell.key: cell for cell in first}
    return sorted(by_key.values(), key=lambda cell: (cell.num_heads, cell.seed, cell.mechanism))


PROVENANCE = ("machine", "versions", "commit", "command", "started")


def gather(
    plan: Plan,
    folder: Path,
    cells: list[Cell],
    published: Published | None,
    dataset: Dataset | None = None,
    tuned: tuple[Tuned, ...] = (),
) -> Published:
    """Put finished cells together with what they ran on and answered, ready to be published.

    Args:
        plan: plan of the cells.
        folder: folder in which they were trained, and keep their answers.
        cells: all finished ones.
        published: results that are published so far; None: no results.
        dataset: data set of the plan's task, for its floors; None: those that the folder or the
            published results tell.
        tuned: learning rates that were chosen for the cells.
    """
    facts = _facts(folder, published)
    if facts is None:
        raise ConfigError(f"nothing has run in {folder} yet; begin with --run.")
    results = Results.of(
        plan,
        cells,
        **{name: getattr(facts, name) for name in PROVENANCE},
        seconds=round(sum(cell.cost_seconds for cell in cells), 1),
        tuned=tuned,
        **_data_facts(folder, published, dataset),
    )
    before = {} if published is None else published.results.rows
    kept = {cell.key: before[cell.key] for cell in cells if cell.key in before}
    results = with_rows(results, folder)
    return Published(
        scale=plan.recipe.scale,
        threads=facts.machine.get("threads") or 1,
        recipe=describe(plan.recipe),
        results=replace(results, rows={**kept, **results.rows}),
    )


def _data_facts(
    folder: Path, published: Published | None, dataset: Dataset | None
) -> dict[str, Any]:
    if dataset is not None:
        return DataFacts.of(dataset, survey(dataset)).fields()
    before = None if published is None else published.results
    known = {} if before is None else {n: getattr(before, n) for n in DataFacts.__annotations__}
    return read_facts(folder) or known


def machine_of(folder: Path, published: Published | None) -> dict[str, Any] | None:
    """Return what the cells of a folder, or the published ones, ran on; None if that is unknown."""
    facts = _facts(folder, published)
    return None if facts is None else facts.machine


def _facts(folder: Path, published: Published | None) -> Provenance | Results | None:
    ran, compared = read_provenance(folder), folder / "results.json"
    if ran is not None:
        return ran
    if compared.exists():
        return read_results(compared)
    return None if published is None else published.results
