"""Quantise the weights of models, and measure the changes."""

from suffice.models.packed import unpack, with_torchao
from suffice.quantise.quantise import quantise
from suffice.quantise.report import (
    DecodingSpeed,
    PredictionChange,
    QuantisationReport,
    QuantisedLayer,
)

__all__ = [
    "DecodingSpeed",
    "PredictionChange",
    "QuantisationReport",
    "QuantisedLayer",
    "quantise",
    "unpack",
    "with_torchao",
]
