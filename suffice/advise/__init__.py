"""Which attention to take for a task on this machine: counted, measured, and told with reasons."""

from suffice.advise.advice import Advice, Crossover, Place
from suffice.advise.advise import advise
from suffice.advise.base import Base, base_of, models_of
from suffice.advise.composition import Composition
from suffice.advise.evidence import Evidence
from suffice.advise.needs import Needs
from suffice.advise.recipes import RECIPES, AdviceRecipe, recipe_named
from suffice.advise.request import TASKS, Request

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
