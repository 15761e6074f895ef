"""What a language model keeps, weighs and holds at once, for any composition of attention."""

from suffice.studio.calculator.answer import LENGTHS, Answer, Layer, answer, calculate
from suffice.studio.calculator.article import ARTICLE, Claim, reported
from suffice.studio.calculator.composition import Composition
from suffice.studio.calculator.known import KNOWN, Known
from suffice.studio.calculator.weights import Weights, weights_of

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
