"""Experiments by name: each a function that returns a frozen dataclass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suffice.errors import check_known, unknown
from suffice.recipes import language, own_data, probes, text, vision
from suffice.recipes.atlas import RECIPES as ATLAS
from suffice.recipes.language import LMRecipe
from suffice.recipes.base import SCALES, SMALL, Recipe

RECIPES: dict[str, Callable[..., Recipe]] = {
    function.__name__: function
    for module in (vision, text, own_data, probes)
    for function in module.RECIPES
}
LM_RECIPES: dict[str, Callable[..., LMRecipe]] = {
    function.__name__: function for function in language.RECIPES
}

TASK_RECIPES = {
    "digits": "digits_vit",
    "mnist": "mnist_v2",
    "cifar100": "cifar100_v2",
    "cifar10_jpeg": "cifar10_v2",
    "tiny_imagenet_100": "tiny_imagenet_32_v2",
    "image_folder": "imagenet_v2",
    "imdb": "imdb",
    "amazon": "amazon",
    "translation_es": "translation_es",
    "womens_clothing": "womens_clothing",
    "table": "table",
    "text": "lm_small",
    "mqar": "mqar",
    "induction": "induction",
    "passkey": "passkey",
    "copy": "copy",
    "two_hop": "two_hop",
}

__all__ = [
    "ATLAS",
    "LM_RECIPES",
    "RECIPES",
    "SCALES",
    "SMALL",
    "TASK_RECIPES",
    "LMRecipe",
    "Recipe",
    "lm_recipe",
    "recipe",
    "recipe_of_task",
    *LM_RECIPES,
    *RECIPES,
]


def __getattr__(name: str) -> Any:
    """Return the function of a recipe by its name."""
    if name in RECIPES:
        return RECIPES[name]
    if name in LM_RECIPES:
        return LM_RECIPES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def recipe(name: str, *, scale: str = "paper") -> Recipe:
    """Return a recipe by name.

    Args:
        name: a key of `RECIPES` or `ATLAS`.
        scale: "paper" for the paper's sizes, "small" for minutes on two cores by the same code.

    Raises:
        ConfigError: for an unknown name or scale, or a scale that the recipe does not have.
    """
    build = RECIPES.get(name) or ATLAS.get(name)
    if build is None:
        raise unknown("recipe", name, RECIPES)
    return build(scale)


def recipe_of_task(task: str, *, scale: str = "paper") -> Recipe:
    """Return the recipe that a task runs unless another is named.

    Args:
        task: a key of `suffice.data.TASKS`.
        scale: see `recipe`.

    Raises:
        ConfigError: for an unknown task or scale, or a scale that the recipe does not have.
    """
    check_known("task", task, TASK_RECIPES)
    return recipe(TASK_RECIPES[task], scale=scale)


def lm_recipe(name: str, *, scale: str = "paper") -> LMRecipe:
    """Return a recipe of a language model by name.

    Args:
        name: a key of `LM_RECIPES`.
        scale: "paper" for the sizes it is named for, "small" for minutes on two cores.

    Raises:
        ConfigError: for an unknown name or scale, or a scale that the recipe does not have.
    """
    check_known("recipe", name, LM_RECIPES)
    return LM_RECIPES[name](scale)
