"""Recommends an attention for a task on this machine, from counts and measurements."""

from suffice.measure.advise.advise import Advice, Place, advise
from suffice.measure.advise.evidence import Evidence
from suffice.measure.advise.request import TASKS, Base, Needs, Request, base_of, models_of
from suffice.models.composition import Composition

__all__ = [
    "TASKS",
    "Advice",
    "Base",
    "Composition",
    "Evidence",
    "Needs",
    "Place",
    "Request",
    "advise",
    "base_of",
    "models_of",
]
