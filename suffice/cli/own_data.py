"""A recipe on the user's own files; a resumed comparison keeps its own."""

from __future__ import annotations

from suffice.measure.plan import Kept
from suffice.recipes import Recipe
from suffice.recipes.own_data import of_user


def with_data(chosen: Recipe, data: str | None, kept: Kept | None) -> Recipe:
    """Return a recipe that reads the files at a path.

    Args:
        chosen: the recipe.
        data: where the files lie; None = the task's own, or those of `kept`.
        kept: what the folder of a resumed comparison says.

    Raises:
        ConfigError: if the task reads no files of the user's.
    """
    if data is None and kept is not None:
        data = dict(kept.recipe.get("task_options", ())).get("path")
    return chosen if data is None else of_user(chosen, data)
