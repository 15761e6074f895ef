"""Results that come with the package: what was trained for a table, where and how long it took."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from suffice.errors import DataError
from suffice.measure.decode import decode, encode
from suffice.measure.plan import describe, flat
from suffice.measure.results import Cell, Results
from suffice.measure.storage import write_atomic
from suffice.recipes import Recipe
from suffice.reproduce.table import Table

UNTOLD = ("title",)  # of a recipe; what may be worded anew without a training being another
FOLDERS = re.compile(r"(?<![^\s='\"])/(?:[^\s/]+/)*")  # of an absolute path
ADVICE = "Take the file of the release, or publish it anew with --publish."


@dataclass(frozen=True, kw_only=True)
class Published:
    """The finished cells of one table.

    Args:
        scale: "paper" or "small".
        threads: of each training.
        recipe: the settings they were trained with.
        results: the cells, and what they ran on.
    """

    scale: str
    threads: int
    recipe: dict[str, Any]
    results: Results


def path_of(store: str) -> Path:
    """Return where the published results of a table lie, there or not."""
    return Path(str(resources.files("suffice").joinpath("results"))) / f"{store}.json"


def published(table: Table) -> Published | None:
    """Return the cells that were published for a table, None if none were.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path = path_of(table.store)
    there = table.trained and path.exists()
    return _read(path, path.stat().st_mtime_ns) if there else None


@lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> Published:  # noqa: ARG001 - a changed file is read anew
    """Read a file of results; many questions are asked of one file."""
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error}). {ADVICE}") from error
    return decode(Published, given, where=str(path))


def publish(table: Table, content: Published) -> Path:
    """Write the results that come with the package and return their file.

    Raises:
        DataError: if the package is not a checkout that can be written.
    """
    results = replace(content.results, command=portable(content.results.command))
    return write_published(
        table.store,
        {
            "scale": content.scale,
            "threads": content.threads,
            "recipe": content.recipe,
            "results": results.to_json(),
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
    """Write a file of the package's results.

    Raises:
        DataError: if the package is not a checkout that can be written.
    """
    path = path_of(store)
    if not (path.parents[2] / "pyproject.toml").exists():
        raise DataError(
            f"{path} belongs to an installed package; publish from a checkout of the source."
        )
    write_atomic(path, json.dumps(encode(content), indent=1, ensure_ascii=False) + "\n")
    return path


def same_training(kept: dict[str, Any], recipe: Recipe) -> bool:
    """Say whether kept settings are those of a recipe; one that only one of them knows may differ.

    Args:
        kept: as `describe` gave them, perhaps by an older version.
        recipe: as it is now.
    """
    there, here = flat(kept), flat(describe(recipe))
    shared = [key for key in there.keys() & here.keys() if key not in UNTOLD]
    return all(there[key] == here[key] for key in shared) and not (
        _deeper(there, here) or _deeper(here, there)
    )


def _deeper(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether what is a plain value in one is a group of settings in the other."""
    groups = {key.rpartition(".")[0] for key in other}
    return any(key in groups for key in one)


def cells_of(content: Published | None, recipe: Recipe) -> list[Cell]:
    """Return the published cells of a recipe at its scale; none if they are of another."""
    if content is None or content.scale != recipe.scale:
        return []
    return list(content.results.cells) if same_training(content.recipe, recipe) else []
