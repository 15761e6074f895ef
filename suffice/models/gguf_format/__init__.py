"""Files of llama.cpp: metadata and tensors in one file, which may hold weights in few bits."""

from suffice.models.gguf_format.blocks import KINDS, BlockKind, codes_of, decode, encode, plain
from suffice.models.gguf_format.file import GGUF, Stored, Tensor, open_gguf, write_gguf

__all__ = [
    "GGUF",
    "KINDS",
    "BlockKind",
    "Stored",
    "Tensor",
    "codes_of",
    "decode",
    "encode",
    "open_gguf",
    "plain",
    "write_gguf",
]
