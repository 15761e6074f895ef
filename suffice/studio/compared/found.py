"""Comparisons in the folders a user chose, and those that come with the package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from suffice.errors import DataError
from suffice.measure.plan import CELLS, FILE, Kept, read_kept
from suffice.measure.results import Cell, Results
from suffice.measure.storage import cell_path, read_cell, read_results
from suffice.reproduce.finished import read_ran, trained_seconds
from suffice.reproduce.published import path_of, published
from suffice.reproduce.tables import TABLES
from suffice.studio.folders import below, rooted

RESULTS = "results.json"
PACKAGE = -1  # in place of the number of a folder
DEEPEST, MOST = 4, 200  # folders inside each other; comparisons in one list


@dataclass(frozen=True, kw_only=True)
class Found:
    """One comparison that can be opened.

    Args:
        root: number of the folder that was chosen, -1 = the package.
        name: below it, or of the package's table.
        told: what a list says.
        finished: whether all of it was run.
    """

    root: int
    name: str
    told: str
    finished: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def found(roots: tuple[Path, ...]) -> list[Found]:
    """List what can be opened: the folders' first, then the package's."""
    own = [one for number, root in enumerate(roots) for one in _beneath(number, root)]
    stores = dict.fromkeys(table.store for table in TABLES.values() if table.trained)
    there = [store for store in stores if path_of(store).exists()]
    return own[:MOST] + [
        Found(root=PACKAGE, name=store, told=f"published: {store}", finished=True)
        for store in there
    ]


def read(roots: tuple[Path, ...], root: object, name: object) -> Results:
    """Read one comparison.

    Args:
        roots: the folders that were chosen.
        root: number of one of them, -1 = the package.
        name: below it.

    Raises:
        DataError: for what is not in the list, or cannot be read.
    """
    if root == PACKAGE:
        return _packaged(name)
    folder = below(rooted(roots, root), name)
    if (folder / RESULTS).is_file():
        return read_results(folder / RESULTS)
    return _begun(folder)


def _packaged(name: object) -> Results:
    for table in TABLES.values():
        if table.store == name and (content := published(table)) is not None:
            return content.results
    raise DataError(f"nothing was published as {name!r:.80}; choose from the list.")


def _begun(folder: Path) -> Results:
    """Return what is finished of a comparison that has not ended, or of a reproduction."""
    kept, ran = read_kept(folder), read_ran(folder)
    cells = _cells(folder, kept)
    if not cells:
        raise DataError(f"no model is finished in {folder.name} yet; look again later.")
    return Results(
        task=str(kept.recipe.get("task")),
        recipe=str(kept.recipe.get("name")),
        title=str(kept.recipe.get("title")),
        scale=str(kept.recipe.get("scale", "paper")),
        margin=kept.margin,
        baseline=kept.baseline,
        cells=cells,
        speeds=(),
        machine={} if ran is None else ran.machine,
        versions={} if ran is None else ran.versions,
        commit=None if ran is None else ran.commit,
        command="not finished yet" if ran is None else ran.command,
        started="" if ran is None else ran.started,
        seconds=sum(map(trained_seconds, cells)),
    )


def _cells(folder: Path, kept: Kept) -> tuple[Cell, ...]:
    """Read the finished cells, in the order of the plan's mechanisms."""
    read_ones = []
    for path in sorted((folder / CELLS).glob("*.json")):
        name, heads, seed = path.stem.rsplit("-", 2)
        key = (unquote(name), int(heads[1:]), int(seed[1:]))
        if cell_path(folder, *key).exists() and (cell := read_cell(folder, *key)) is not None:
            read_ones.append(cell)
    order = {name: place for place, name in enumerate(kept.mechanisms)}
    last = len(order)
    return tuple(
        sorted(read_ones, key=lambda c: (c.num_heads, order.get(c.mechanism, last), c.seed))
    )


def _beneath(number: int, root: Path) -> Iterator[Found]:
    """Look for comparisons in a folder and below it; links are not followed."""
    inside = root.resolve()
    for here, folders, files in os.walk(inside):
        path = Path(here)
        name = path.relative_to(inside)
        begun = FILE in files and CELLS in folders
        if begun or (RESULTS in files and _compares(path / RESULTS)):
            finished = RESULTS in files
            told = f"{inside.name if name == Path() else name.as_posix()}"
            told += "" if finished else " (not finished)"
            yield Found(root=number, name=name.as_posix(), told=told, finished=finished)
            folders.clear()
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != CELLS)
        if len(name.parts) >= DEEPEST:
            folders.clear()


def _compares(path: Path) -> bool:
    """Return whether results may be those of a comparison; other commands leave files so named."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True  # opening it says what is wrong
    return not isinstance(told, dict) or "cells" in told
