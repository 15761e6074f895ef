"""A recipe on the user's own files."""

from __future__ import annotations

import inspect
from dataclasses import replace

from suffice.data import TASKS
from suffice.errors import ConfigError
from suffice.recipes.recipe import Recipe

OPTION = "path"  # of the tasks that can read files of the user's


def of_user(chosen: Recipe, path: str) -> Recipe:
    """Return a recipe that reads the user's files instead of the task's own.

    Args:
        chosen: the recipe.
        path: where the files lie, as the task's loader wants it.

    Raises:
        ConfigError: if the task reads no files of the user's.

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
    return replace(chosen, task_options=tuple(options.items()))


def path_of(chosen: Recipe) -> str | None:
    """Return where a recipe's files of the user lie, None for the task's own data."""
    return dict(chosen.task_options).get(OPTION)


def _reads(task: str) -> bool:
    return OPTION in inspect.signature(TASKS[task]).parameters
