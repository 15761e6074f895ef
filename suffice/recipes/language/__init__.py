"""Language models by name: what they are, what they read and how they are trained."""

from __future__ import annotations

from collections.abc import Callable

from suffice.errors import unknown
from suffice.recipes.language.large import llama_1b_efficient, nanogpt_124m
from suffice.recipes.language.recipe import LMRecipe
from suffice.recipes.language.small import shakespeare_char, stdlib_bpe

LM_RECIPES: dict[str, Callable[..., LMRecipe]] = {
    "shakespeare_char": shakespeare_char,
    "stdlib_bpe": stdlib_bpe,
    "nanogpt_124m": nanogpt_124m,
    "llama_1b_efficient": llama_1b_efficient,
}

__all__ = [
    "LM_RECIPES",
    "LMRecipe",
    "llama_1b_efficient",
    "lm_recipe",
    "nanogpt_124m",
    "shakespeare_char",
    "stdlib_bpe",
]


def lm_recipe(name: str, *, scale: str = "paper") -> LMRecipe:
    """Return a recipe of a language model by name.

    Args:
        name: a key of `LM_RECIPES`.
        scale: "paper" for the sizes it is named for, "small" for minutes on two cores.

    Raises:
        ConfigError: for an unknown name or scale, or a scale that the recipe does not have.
    """
    if name not in LM_RECIPES:
        raise unknown("recipe", name, LM_RECIPES)
    return LM_RECIPES[name](scale)
