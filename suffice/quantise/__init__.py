"""Weight quantisation of models, and reports of what it changes."""

from suffice.models.packed import unpack, with_torchao
from suffice.quantise.quantise import quantise
from suffice.quantise.report import (
    PredictionChange,
    QuantisationReport,
    QuantisedLayer,
)

__all__ = [
    "PredictionChange",
    "QuantisationReport",
    "QuantisedLayer",
    "quantise",
    "unpack",
    "with_torchao",
]
