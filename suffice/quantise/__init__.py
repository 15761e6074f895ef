"""Quantise the weights of models, and measure the changes."""

from suffice.models.packed import unpack, with_torchao
from suffice.quantise.quantise import quantise
from suffice.quantise.report import Change, Layer, Report, Speed

__all__ = ["Change", "Layer", "Report", "Speed", "quantise", "unpack", "with_torchao"]
