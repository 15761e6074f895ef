"""Models in fewer bits: packed weights, how they are rounded, and what that changes."""

from suffice.models.packed import unpack, with_torchao
from suffice.quantise.quantise import quantise
from suffice.quantise.report import Change, Layer, Report, Speed

__all__ = ["Change", "Layer", "Report", "Speed", "quantise", "unpack", "with_torchao"]
