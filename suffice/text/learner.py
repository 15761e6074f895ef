"""Learns a byte-pair vocabulary, as a program of its own that can be ended at any moment.

It is run from this file, not imported with the package, and so starts without torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO

HEAD = 8  # bytes in front of each text that tell its length, little-endian


def main(vocabulary_size: str, seen: str, end: str) -> None:
    """Read texts from standard input and write a tokenizer.json to standard output.

    Args:
        vocabulary_size: the most tokens there may be.
        seen: times a pair must occur.
        end: token that ends a document; it gets the id 0, the bytes those after it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(vocabulary_size),
        min_frequency=int(seen),
        show_progress=False,
        special_tokens=[end],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(sys.stdin.buffer), trainer)
    sys.stdout.buffer.write(tokenizer.to_str().encode())
    sys.stdout.buffer.flush()


def texts(stream: BinaryIO) -> Iterator[str]:
    """Yield the texts that `framed` put into a stream."""
    while head := stream.read(HEAD):
        yield stream.read(int.from_bytes(head, "little")).decode()


def framed(text: str) -> bytes:
    """Return a text as `texts` reads it.

    Example:
        >>> import io
        >>> list(texts(io.BytesIO(framed("one") + framed(""))))
        ['one', '']
    """
    content = text.encode()
    return len(content).to_bytes(HEAD, "little") + content
