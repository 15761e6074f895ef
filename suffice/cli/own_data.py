"""A recipe on the user's own files; a resumed comparison keeps its own."""

from __future__ import annotations

from typing import Any

from suffice.errors import ConfigError, DataError
from suffice.measure.plan import Kept
from suffice.recipes import Recipe
from suffice.recipes.own_data import TABLE, of_user


def with_data(
    chosen: Recipe, data: str | None, kept: Kept | None, columns: str | None = None
) -> Recipe:
    """Return a recipe that reads the files at a path.

    Args:
        chosen: the recipe.
        data: where the files lie; None = the task's own, or those of `kept`.
        kept: what the folder of a resumed comparison says.
        columns: of a table, see `of_user`; None = the default's, or those of `kept`.

    Raises:
        ConfigError: if the task reads no files of the user's, needs one, or reads no columns.
        DataError: if what the folder says of the task was altered.
    """
    if kept is not None:
        options = _options(kept)
        data = options.get("path") if data is None else data
        columns = options.get("columns") if columns is None else columns
    if data is not None:
        return of_user(chosen, data, columns)
    if columns is not None:
        raise ConfigError(f"--columns {columns}: name the table, too, by --data.")
    if chosen.task == TABLE:
        raise ConfigError("--task table: name the .csv, .tsv or .jsonl, by --data.")
    return chosen


def _options(kept: Kept) -> dict[str, Any]:
    """Return the options of the task of a comparison that was begun."""
    given = kept.recipe.get("task_options", ())
    try:
        return dict(given)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the comparison's plan.json has task_options {given!r:.60}, which are no pairs of "
            "names and values; start another one."
        ) from error
