"""Runs an exported model with ONNX Runtime alone; nothing here imports torch."""

from suffice.runtime.manifest import check_files, read
from suffice.runtime.session import Session, Tokenizer, generate

__all__ = ["Session", "Tokenizer", "check_files", "generate", "read"]
