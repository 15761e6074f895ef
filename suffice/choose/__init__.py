"""Which attention to try first: recommended, counted and timed on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.utils import ByName, attributes

if TYPE_CHECKING:
    from suffice.choose.advice import Advice, Place, advise
    from suffice.choose.candidates import Base, Needs, base_of, models_of
    from suffice.choose.evidence import Evidence
    from suffice.choose.request import TASKS, Request
    from suffice.models.composition import Composition

_NAMES = {
    "choose.advice": ("Advice", "Place", "advise"),
    "choose.candidates": ("Base", "Needs", "base_of", "models_of"),
    "choose.evidence": ("Evidence",),
    "choose.request": ("TASKS", "Request"),
    "models.composition": ("Composition",),
}
__getattr__ = attributes(__name__, ByName.of("suffice", _NAMES))

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
