"""The finished cells of a table: those that come with the package and those of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from suffice.errors import ConfigError, DataError
from suffice.measure.decode import decode
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.plan import CELLS, FILE, Plan, data_of, describe, read_kept
from suffice.measure.results import Cell, Results
from suffice.measure.storage import cell_path, read_cell, read_results, write_atomic
from suffice.recipes.own_data import path_of
from suffice.reproduce.published import Published, same_training

Key = tuple[str, int, int]
RAN = "ran.json"
NAME = re.compile(r"(.+)-h(\d+)-s(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What the cells of a working folder ran on.

    Args:
        machine: facts about it.
        versions: of the software.
        commit: of the source.
        command: that began the folder.
        started: when, in ISO 8601.
        threads: of each training.
        data: digest of the user's files that they were trained on, None for the task's own.
    """

    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str | None
    command: str
    started: str
    threads: int
    data: str | None = None


def claim(folder: Path, plan: Plan, *, command: str, started: str, threads: int) -> None:
    """Make a folder this plan's working folder, or find that it fits the one there.

    Raises:
        ConfigError: if it holds cells of another recipe, or trained with other threads.
        DataError: if it cannot be read or written.
    """
    if not (folder / FILE).exists():
        plan.claim(folder, resume=False)
    refuse_another(folder, plan)
    ran = read_ran(folder)
    if ran is not None and ran.threads != threads:
        raise ConfigError(
            f"the cells in {folder} were trained with {ran.threads} threads each, not {threads}; "
            f"give --threads {ran.threads}, or another folder with --out."
        )
    if ran is None:
        content = {
            "machine": {**machine_facts(), "threads": threads},
            "versions": software_versions(),
            "commit": source_commit(),
            "command": command,
            "started": started,
            "threads": threads,
            "data": data_of(plan.recipe),
        }
        write_atomic(folder / RAN, json.dumps(content, indent=1) + "\n")


def refuse_another(folder: Path, plan: Plan) -> None:
    """Refuse a folder whose cells have other settings.

    Raises:
        ConfigError: if its plan is of another recipe or device, or files of the user's have
            changed since.
        DataError: if its plan cannot be read, or the files of the user's.
    """
    kept = read_kept(folder)
    if kept.device != plan.device or not same_training(kept.recipe, plan.recipe):
        raise ConfigError(
            f"{folder} holds cells of other settings ({kept.recipe.get('name')}, scale "
            f"{kept.recipe.get('scale')}, {kept.device}); name another folder with --out."
        )
    ran = read_ran(folder)
    if ran is not None and ran.data != data_of(plan.recipe):
        raise ConfigError(
            f"the cells in {folder} were trained on other data: what lies at "
            f"{path_of(plan.recipe)} has changed since; give the files as they were, or another "
            "folder with --out."
        )


def read_ran(folder: Path) -> Ran | None:
    """Read what a working folder ran on; None if nothing has run there, or by `suffice compare`.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path = folder / RAN
    if not path.exists():
        return None
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it to go on.") from error
    return decode(Ran, given, where=str(path))


def in_folder(folder: Path, plan: Plan) -> list[Cell]:
    """Read every finished cell of a working folder; none if there is no such folder.

    Raises:
        ConfigError: if it holds cells of another recipe.
        DataError: if a file is truncated or altered.
    """
    if not (folder / FILE).exists():
        return []
    refuse_another(folder, plan)
    keys = [key for path in sorted((folder / CELLS).glob("*.json")) if (key := _key(path))]
    cells = [read_cell(folder, *key) for key in keys if cell_path(folder, *key).exists()]
    return [cell for cell in cells if cell is not None]


def joined(first: Iterable[Cell], second: Iterable[Cell]) -> list[Cell]:
    """Return the cells of both, each once; where both have one, the first's is taken."""
    found = {cell.key: cell for cell in second} | {cell.key: cell for cell in first}
    return sorted(found.values(), key=lambda cell: (cell.num_heads, cell.seed, cell.mechanism))


def gather(plan: Plan, folder: Path, cells: list[Cell], kept: Published | None) -> Published:
    """Put finished cells together with what they ran on, ready to be published.

    Args:
        plan: the recipe and what it is compared by.
        folder: where they were trained.
        cells: the finished ones.
        kept: what was published before; its facts are taken where the folder has none.

    Raises:
        ConfigError: if nothing has run.
    """
    facts = _facts(folder, kept)
    if facts is None:
        raise ConfigError(f"nothing has run in {folder} yet; begin with --run.")
    recipe = plan.recipe
    results = Results(
        task=recipe.task,
        recipe=recipe.name,
        title=recipe.title,
        margin=plan.margin,
        baseline=plan.baseline,
        cells=tuple(cells),
        speeds=(),
        scale=recipe.scale,
        machine=facts.machine,
        versions=facts.versions,
        commit=facts.commit,
        command=facts.command,
        started=facts.started,
        seconds=round(sum(trained_seconds(cell) for cell in cells), 1),
    )
    return Published(
        scale=recipe.scale,
        threads=facts.machine.get("threads") or 1,
        recipe=describe(recipe),
        results=results,
    )


def machine_of(folder: Path, kept: Published | None) -> dict[str, Any] | None:
    """Return what the cells of a folder, or the published ones, ran on; None if that is unknown."""
    facts = _facts(folder, kept)
    return None if facts is None else facts.machine


def _facts(folder: Path, kept: Published | None) -> Ran | Results | None:
    """Find who trained: this program, `suffice compare`, or whoever published."""
    ran, compared = read_ran(folder), folder / "results.json"
    if ran is not None:
        return ran
    if compared.exists():
        return read_results(compared)
    return None if kept is None else kept.results


def trained_seconds(cell: Cell) -> float:
    """Return how long the epochs of one cell took."""
    return sum(record["seconds"] for record in cell.epochs)


def _key(path: Path) -> Key | None:
    """Read mechanism, heads and seed off the name of a cell's file; None if it is no such name."""
    found = NAME.fullmatch(path.name)
    return found and (unquote(found[1]), int(found[2]), int(found[3]))
