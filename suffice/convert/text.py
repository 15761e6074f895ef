"""The rows of text that a conversion learns from, and those that judge it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from suffice.errors import DataError
from suffice.quantise.text import rows_of
from suffice.text import Corpus, Tokenizer

LENGTH = 256  # tokens of a row at most
TOGETHER = 8  # rows of a batch


def batches(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return batches of the training part of a text, and half as much of its validation part.

    Args:
        corpus: the text.
        tokenizer: of the model.
        length: the longest row that the model reads, tokens.
        tokens: to learn from.

    Raises:
        DataError: if a part is shorter than one batch.

    Shapes:
        int64 [8, T] each, with T of 256 or length
    """
    length = min(length, LENGTH)
    learnt = _rows(corpus.train, corpus.train.name, tokenizer, length, tokens)
    held = _rows(corpus.validation, corpus.validation.name, tokenizer, length, tokens // 2)
    return learnt, held


def _rows(
    documents: Iterable[str], name: str, tokenizer: Tokenizer, length: int, tokens: int
) -> list[Tensor]:
    least = TOGETHER * length
    rows = rows_of(documents, tokenizer, length=length, tokens=max(tokens, least))
    if rows.numel() < least or rows.shape[1] < length:
        raise DataError(
            f"{name} gives {rows.numel():,} tokens in rows, less than one batch of {TOGETHER} rows "
            f"of {length}; give more text."
        )
    return list(rows.split(TOGETHER))
