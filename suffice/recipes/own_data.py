"""A recipe on the user's own files."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

from suffice.data import TASKS
from suffice.data.table import COLUMNS, classes
from suffice.errors import ConfigError
from suffice.recipes.recipe import Recipe
from suffice.recipes.table import OF_ANY

OPTION = "path"  # of the tasks that can read files of the user's
TABLE = "table"


def of_user(chosen: Recipe, path: str, columns: str | None = None) -> Recipe:
    """Return a recipe that reads the user's files instead of the task's own.

    Args:
        chosen: the recipe.
        path: where the files lie, as the task's loader wants it.
        columns: of a table: those of the texts and of the classes, with a comma between.

    Raises:
        ConfigError: if the task reads no files of the user's, or no columns.
        DataError: if it is a table that cannot be read.

    Example:
        >>> from suffice.recipes.amazon import amazon
        >>> path_of(of_user(amazon(), "all.jsonl.gz")), path_of(amazon())
        ('all.jsonl.gz', None)
    """
    if not _reads(chosen.task):
        able = " or ".join(name for name in TASKS if _reads(name))
        raise ConfigError(
            f"--data {path}: task {chosen.task} reads its own data; leave it out, or take a recipe "
            f"on {able}."
        )
    options = {**dict(chosen.task_options), OPTION: path}
    if chosen.task == TABLE:
        options["columns"] = columns or COLUMNS
        count = len(classes(path, options["columns"]))
        title = chosen.title.replace(OF_ANY, f"{Path(path).name}, {count} classes")
        model = replace(chosen.model, num_classes=count)
        return replace(chosen, title=title, model=model, task_options=tuple(options.items()))
    if columns is not None:
        raise ConfigError(
            f"--columns {columns}: task {chosen.task} names its own; leave it out, or take --task "
            f"{TABLE}."
        )
    return replace(chosen, task_options=tuple(options.items()))


def path_of(chosen: Recipe) -> str | None:
    """Return where a recipe's files of the user lie, None for the task's own data."""
    return dict(chosen.task_options).get(OPTION)


def _reads(task: str) -> bool:
    return OPTION in inspect.signature(TASKS[task]).parameters
