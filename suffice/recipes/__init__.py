"""Experiments by name: functions that return frozen dataclasses."""

from __future__ import annotations

from collections.abc import Callable

from suffice.errors import unknown
from suffice.recipes.digits_vit import digits_vit
from suffice.recipes.imdb import imdb
from suffice.recipes.induction import induction
from suffice.recipes.language import (
    LM_RECIPES,
    LMRecipe,
    llama_1b_efficient,
    lm_recipe,
    nanogpt_124m,
    shakespeare_char,
    stdlib_bpe,
)
from suffice.recipes.mnist_v2 import mnist_v2
from suffice.recipes.mqar import mqar
from suffice.recipes.passkey import passkey
from suffice.recipes.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits_vit": digits_vit,
    "mnist_v2": mnist_v2,
    "imdb": imdb,
    "mqar": mqar,
    "induction": induction,
    "passkey": passkey,
}

TASK_RECIPES = {
    "digits": "digits_vit",
    "mnist": "mnist_v2",
    "imdb": "imdb",
    "mqar": "mqar",
    "induction": "induction",
    "passkey": "passkey",
}

__all__ = [
    "LM_RECIPES",
    "RECIPES",
    "TASK_RECIPES",
    "LMRecipe",
    "Recipe",
    "digits_vit",
    "imdb",
    "induction",
    "llama_1b_efficient",
    "lm_recipe",
    "mnist_v2",
    "mqar",
    "nanogpt_124m",
    "passkey",
    "recipe",
    "recipe_of_task",
    "shakespeare_char",
    "stdlib_bpe",
]


def recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()


def recipe_of_task(task: str) -> Recipe:
    """Return the recipe that a task runs unless another is named.

    Raises:
        ConfigError: for an unknown task.
    """
    if task not in TASK_RECIPES:
        raise unknown("task", task, TASK_RECIPES)
    return recipe(TASK_RECIPES[task])
