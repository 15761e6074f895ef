"""Recipes on the user's own files."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

from suffice.data import TASKS
from suffice.data.table import COLUMNS, classes
from suffice.errors import ConfigError
from suffice.recipes.recipe import Recipe
from suffice.recipes.text import classifier

OF_ANY = "A table of texts and classes"
"""The beginning of the title until a file is named."""


def table(scale: str = "paper") -> Recipe:
    """A table of texts and classes: two layers, d 64, the last 64 words, minutes on two cores.

    Of no paper. Unlike in the recipes of the papers, padding is not read: attention and the mean
    over positions leave it out. The number of classes is that of the file, see `of_user`.
    """
    return classifier(
        "table",
        f"{OF_ANY}, 2 blocks, d_model 64, last 64 words",
        vocabulary_size=20_000,
        length=64,
        num_classes=2,
        d_model=64,
        depth=2,
        epochs=5,
        reads_padding=False,
    ).at(scale)


OPTION = "path"  # of the tasks that can read the user's own files
TABLE = "table"


def of_user(recipe: Recipe, path: str, columns: str | None = None) -> Recipe:
    """Return a recipe that reads the user's files instead of the task's own.

    Example:
        >>> from suffice.recipes.text import amazon
        >>> path_of(of_user(amazon(), "all.jsonl.gz")), path_of(amazon())
        ('all.jsonl.gz', None)
    """
    if not _reads(recipe.task):
        able = " or ".join(name for name in TASKS if _reads(name))
        raise ConfigError(
            f"--data {path}: task {recipe.task} reads its own data; leave it out, or take a recipe "
            f"on {able}."
        )
    options = {**dict(recipe.task_options), OPTION: path}
    if recipe.task == TABLE:
        options["columns"] = columns or COLUMNS
        count = len(classes(path, options["columns"]))
        title = recipe.title.replace(OF_ANY, f"{Path(path).name}, {count} classes")
        model = replace(recipe.model, num_classes=count)
        return replace(recipe, title=title, model=model, task_options=tuple(options.items()))
    if columns is not None:
        raise ConfigError(
            f"--columns {columns}: task {recipe.task} names its own; leave it out, or take --task "
            f"{TABLE}."
        )
    return replace(recipe, task_options=tuple(options.items()))


def path_of(recipe: Recipe) -> str | None:
    """Return the path of the user's data, None for the task's own."""
    return dict(recipe.task_options).get(OPTION)


def _reads(task: str) -> bool:
    return OPTION in inspect.signature(TASKS[task]).parameters
