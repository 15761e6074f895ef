"""A recipe on the user's own files; a resumed comparison keeps its own."""

from __future__ import annotations

from suffice.errors import ConfigError
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
    """
    if kept is not None:
        options = dict(kept.recipe.get("task_options", ()))
        data = options.get("path") if data is None else data
        columns = options.get("columns") if columns is None else columns
    if data is not None:
        return of_user(chosen, data, columns)
    if columns is not None:
        raise ConfigError(f"--columns {columns}: name the table, too, by --data.")
    if chosen.task == TABLE:
        raise ConfigError("--task table: name the .csv, .tsv or .jsonl, by --data.")
    return chosen
