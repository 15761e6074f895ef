"""Running an exported model with ONNX Runtime alone: nothing here imports torch."""

from suffice.runtime.manifest import check_files, read
from suffice.runtime.session import Session
from suffice.runtime.words import Words
from suffice.runtime.write import write

__all__ = ["Session", "Words", "check_files", "read", "write"]
