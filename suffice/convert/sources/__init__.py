"""Checkpoints of others, and of this library, as models with attention that can be converted."""

from suffice.convert.sources.encoders import Encoder, from_encoder
from suffice.convert.sources.hugging_face import FAMILIES, tensors_for
from suffice.convert.sources.source import Source, open_source

__all__ = ["FAMILIES", "Encoder", "Source", "from_encoder", "open_source", "tensors_for"]
