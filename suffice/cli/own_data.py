"""A recipe on the user's own files."""

from __future__ import annotations

import inspect
from dataclasses import replace

from suffice.data import TASKS
from suffice.errors import ConfigError
from suffice.measure.plan import Kept
from suffice.recipes import Recipe


def with_data(chosen: Recipe, data: str | None, kept: Kept | None) -> Recipe:
    """Return a recipe that reads the files at a path; a resumed comparison keeps its own.

    Args:
        chosen: the recipe.
        data: where the files lie; None = the task's own, or those of `kept`.
        kept: what the folder of a resumed comparison says.

    Raises:
        ConfigError: if the task reads no files of the user's.
    """
    if data is None and kept is not None:
        data = dict(kept.recipe.get("task_options", ())).get("path")
    if data is None:
        return chosen
    if "path" not in inspect.signature(TASKS[chosen.task]).parameters:
        able = [name for name in TASKS if "path" in inspect.signature(TASKS[name]).parameters]
        raise ConfigError(
            f"--data {data}: task {chosen.task} reads its own data; leave it out, or compare on "
            f"{' or '.join(able)}."
        )
    return replace(chosen, task_options=tuple({**dict(chosen.task_options), "path": data}.items()))
