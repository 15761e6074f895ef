"""Experiments by name: functions that return frozen dataclasses."""

from __future__ import annotations

from collections.abc import Callable

from suffice.errors import unknown
from suffice.recipes.language import (
    LM_RECIPES,
    LMRecipe,
    llama_1b_efficient,
    lm_recipe,
    nanogpt_124m,
    shakespeare_char,
    stdlib_bpe,
)
from suffice.recipes.own_data import table
from suffice.recipes.probes import copy, induction, lm_small, mqar, passkey, two_hop
from suffice.recipes.recipe import SCALES, SMALL, STAND_INS, Recipe, stands_for
from suffice.recipes.text import (
    amazon,
    amazon_scaling_5m,
    amazon_scaling_10m,
    amazon_scaling_15m,
    amazon_scaling_20m,
    amazon_scaling_25m,
    imdb,
    translation_es,
    womens_clothing,
)
from suffice.recipes.vision import (
    cifar10_v1,
    cifar10_v2,
    cifar100_v1,
    cifar100_v2,
    digits_vit,
    imagenet_equal_params,
    imagenet_v2,
    mnist_v1,
    mnist_v2,
    tiny_imagenet_32_v1,
    tiny_imagenet_32_v2,
    tiny_imagenet_112_equal_params,
    tiny_imagenet_112_v2,
)

RECIPES: dict[str, Callable[..., Recipe]] = {
    "digits_vit": digits_vit,
    "mnist_v2": mnist_v2,
    "mnist_v1": mnist_v1,
    "cifar100_v1": cifar100_v1,
    "cifar10_v1": cifar10_v1,
    "tiny_imagenet_32_v1": tiny_imagenet_32_v1,
    "cifar100_v2": cifar100_v2,
    "cifar10_v2": cifar10_v2,
    "tiny_imagenet_32_v2": tiny_imagenet_32_v2,
    "imagenet_v2": imagenet_v2,
    "imagenet_equal_params": imagenet_equal_params,
    "tiny_imagenet_112_v2": tiny_imagenet_112_v2,
    "tiny_imagenet_112_equal_params": tiny_imagenet_112_equal_params,
    "imdb": imdb,
    "amazon": amazon,
    "amazon_scaling_5m": amazon_scaling_5m,
    "amazon_scaling_10m": amazon_scaling_10m,
    "amazon_scaling_15m": amazon_scaling_15m,
    "amazon_scaling_20m": amazon_scaling_20m,
    "amazon_scaling_25m": amazon_scaling_25m,
    "translation_es": translation_es,
    "womens_clothing": womens_clothing,
    "table": table,
    "lm_small": lm_small,
    "mqar": mqar,
    "induction": induction,
    "passkey": passkey,
    "copy": copy,
    "two_hop": two_hop,
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
    "LM_RECIPES",
    "RECIPES",
    "SCALES",
    "SMALL",
    "STAND_INS",
    "TASK_RECIPES",
    "LMRecipe",
    "Recipe",
    "amazon",
    "amazon_scaling_5m",
    "amazon_scaling_10m",
    "amazon_scaling_15m",
    "amazon_scaling_20m",
    "amazon_scaling_25m",
    "cifar10_v1",
    "cifar10_v2",
    "cifar100_v1",
    "cifar100_v2",
    "copy",
    "digits_vit",
    "imagenet_equal_params",
    "imagenet_v2",
    "imdb",
    "induction",
    "llama_1b_efficient",
    "lm_recipe",
    "lm_small",
    "mnist_v1",
    "mnist_v2",
    "mqar",
    "nanogpt_124m",
    "passkey",
    "recipe",
    "recipe_of_task",
    "shakespeare_char",
    "stands_for",
    "stdlib_bpe",
    "table",
    "tiny_imagenet_32_v1",
    "tiny_imagenet_32_v2",
    "tiny_imagenet_112_equal_params",
    "tiny_imagenet_112_v2",
    "translation_es",
    "two_hop",
    "womens_clothing",
]


def recipe(name: str, *, scale: str = "paper") -> Recipe:
    """Return a recipe by name.

    Args:
        name: a key of `RECIPES`.
        scale: "paper" for the paper's sizes, "small" for minutes on two cores by the same code.

    Raises:
        ConfigError: for an unknown name or scale, or a scale that the recipe does not have.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name](scale)


def recipe_of_task(task: str, *, scale: str = "paper") -> Recipe:
    """Return the recipe that a task runs unless another is named.

    Args:
        task: a key of `suffice.data.TASKS`.
        scale: see `recipe`.

    Raises:
        ConfigError: for an unknown task or scale, or a scale that the recipe does not have.
    """
    if task not in TASK_RECIPES:
        raise unknown("task", task, TASK_RECIPES)
    return recipe(TASK_RECIPES[task], scale=scale)
