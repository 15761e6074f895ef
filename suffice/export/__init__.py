"""A model as files that other programs run: transformers, ONNX Runtime, torch."""

from suffice.export.architecture import config_of, described
from suffice.export.exported import export
from suffice.runtime.manifest import FORMATS

__all__ = ["FORMATS", "config_of", "described", "export"]
