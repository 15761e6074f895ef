"""Writes a model as files for other programs: transformers, ONNX Runtime, torch."""

from suffice.export.architecture import config_of, stock_model
from suffice.export.export import export
from suffice.export.gguf import export_gguf
from suffice.runtime import FORMATS

__all__ = ["FORMATS", "config_of", "export", "export_gguf", "stock_model"]
