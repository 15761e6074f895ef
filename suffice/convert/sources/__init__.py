"""Opens checkpoints of other libraries, and of this one, as models that can be converted."""

from suffice.convert.sources.encoders import Encoder, from_encoder
from suffice.convert.sources.hugging_face import ARCHITECTURES, tensors_for
from suffice.convert.sources.source import Source, open_source

__all__ = ["ARCHITECTURES", "Encoder", "Source", "from_encoder", "open_source", "tensors_for"]
