"""Running an exported model with ONNX Runtime alone: nothing here imports torch."""

from suffice.runtime.manifest import check_files, read
from suffice.runtime.session import Session, Words, write

__all__ = ["Session", "Words", "check_files", "read", "write"]
