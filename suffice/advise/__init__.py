"""Recommends an attention for a task on this machine, from counts and measurements."""

from suffice.advise.advise import Advice, advise
from suffice.advise.evidence import Evidence
from suffice.advise.recipes import RECIPES, AdviceRecipe, recipe_named
from suffice.advise.request import TASKS, Base, Needs, Request, base_of, models_of
from suffice.advise.study import Crossover, Place
from suffice.models.composition import Composition

__all__ = [
    "RECIPES",
    "TASKS",
    "Advice",
    "AdviceRecipe",
    "Base",
    "Composition",
    "Crossover",
    "Evidence",
    "Needs",
    "Place",
    "Request",
    "advise",
    "base_of",
    "models_of",
    "recipe_named",
]
