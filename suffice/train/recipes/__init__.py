"""Experiments by name: each a function that returns a frozen dataclass."""

from __future__ import annotations

from collections import ChainMap
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from suffice.errors import check_known, unknown
from suffice.utils import ByName, attributes
from suffice.utils.grammar import SCALES, SMALL

if TYPE_CHECKING:
    from suffice.train.recipes.base import Recipe
    from suffice.train.recipes.language import LMRecipe

_VISION = (
    "digits_vit",
    "mnist_v2",
    "cifar100_v2",
    "cifar10_v2",
    "tiny_imagenet_32_v2",
    "imagenet_v2",
)
RECIPES = ByName.of(
    __name__,
    {
        "vision": _VISION,
        "text": ("imdb", "amazon", "translation_es", "womens_clothing"),
        "own_data": ("table", "pictures"),
        "probes": ("lm_small", "stdlib", "mqar", "induction", "passkey", "copy", "two_hop"),
    },
)
_LANGUAGE = ("shakespeare_char", "stdlib_bpe", "nanogpt_124m", "llama_1b_efficient")
LM_RECIPES = ByName.of(__name__, {"language": _LANGUAGE})
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
    "stdlib": "stdlib",
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
    "TASK_RECIPES",
    "LMRecipe",
    "Recipe",
    "lm_recipe",
    "recipe",
    "recipe_names",
    "recipe_of_task",
    *LM_RECIPES,
    *RECIPES,
]


_CLASSES = {"base": ("Recipe",), "language": ("LMRecipe",)}
ALL_RECIPES = ChainMap(RECIPES, LM_RECIPES)
__getattr__ = attributes(__name__, ALL_RECIPES.new_child(ByName.of(__name__, _CLASSES)))


def recipe(name: str, *, scale: str = "paper") -> Recipe:
    """Return a recipe by name.

    Args:
        name: a key of `RECIPES`, or a recipe that an installed package brings as an entry point of
            the group `suffice.recipes`.
        scale: "paper" for the paper's sizes, "small" for minutes on two cores by the same code.

    Raises:
        ConfigError: for an unknown name or scale, or a scale that the recipe does not have.
    """
    if name in RECIPES:
        return RECIPES[name](scale)
    for entry in entry_points(group="suffice.recipes", name=name):
        return entry.load()(scale)
    raise unknown("recipe", name, recipe_names())


def recipe_names() -> list[str]:
    """List the recipes by name: those here, and those that installed packages bring."""
    return [*RECIPES, *entry_points(group="suffice.recipes").names]


def recipe_of_task(task: str, *, scale: str = "paper") -> Recipe:
    """Return the recipe that a task of `suffice.data.TASKS` runs unless another is named."""
    check_known("task", task, TASK_RECIPES)
    return recipe(TASK_RECIPES[task], scale=scale)


def lm_recipe(name: str, *, scale: str = "paper") -> LMRecipe:
    """Return a recipe of a language model, a key of `LM_RECIPES`; scales as those of `recipe`."""
    check_known("recipe", name, LM_RECIPES)
    return LM_RECIPES[name](scale)
