"""What a language model keeps, weighs and holds at once, for any composition of attention."""

from suffice.studio.calculator.answer import (
    LENGTHS,
    Answer,
    Composition,
    Layer,
    Weights,
    answer,
    calculate,
    weights_of,
)
from suffice.studio.calculator.published import ARTICLE, KNOWN, Claim, Known, reported

__all__ = [
    "ARTICLE",
    "KNOWN",
    "LENGTHS",
    "Answer",
    "Claim",
    "Composition",
    "Known",
    "Layer",
    "Weights",
    "answer",
    "calculate",
    "reported",
    "weights_of",
]
