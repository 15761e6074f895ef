"""Recommends an attention for a task on this machine, from counts and measurements."""

from suffice.measure.advise.advise import Advice, advise
from suffice.measure.advise.evidence import Evidence
from suffice.measure.advise.recipes import RECIPES, AdviceRecipe, recipe_named
from suffice.measure.advise.request import TASKS, Base, Needs, Request, base_of, models_of
from suffice.measure.advise.study import Crossover, Place
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
