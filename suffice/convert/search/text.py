"""The rows of text that a search learns from, chooses by, and judges by."""

from __future__ import annotations

import math

from torch import Tensor

from suffice.errors import DataError
from suffice.quantise.text import rows_of
from suffice.text import Corpus, Documents, Tokenizer

TOGETHER = 1 << 12  # tokens of a batch
LEAST = 4  # rows of each part
DOCUMENTS = 8  # that rows come from at least, where there are as many
SAMPLE = 4000  # characters that tell how many a token has
SPARE = 1.25  # documents differ
HELD = 2  # of what is learnt from, one part chooses and as much judges


def rows_for(
    corpus: Corpus, tokenizer: Tokenizer, *, length: int, tokens: int
) -> dict[str, list[Tensor]]:
    """Return batches of rows [B, T]: "calibration", "scoring" and "judging".

    What is learnt from is of the training part. Of the validation part every other row chooses and
    the others judge. Documents give like shares where there are few, about an eighth at most.

    Args:
        corpus: the text.
        tokenizer: of the model.
        length: tokens of a row, T.
        tokens: to learn from; half as many choose, and as many judge.

    Raises:
        DataError: if a part of the text is too short.
    """
    train, held = corpus.train, corpus.validation
    learnt = _rows(train, train.name, tokenizer, length, tokens, LEAST)
    rest = _rows(held, held.name, tokenizer, length, 2 * tokens // HELD, 2 * LEAST)
    parts = {"calibration": learnt, "scoring": rest[::2], "judging": rest[1::2]}
    together = max(TOGETHER // length, 1)
    return {name: list(rows.split(together)) for name, rows in parts.items()}


def _share(documents: Documents, tokenizer: Tokenizer, tokens: int) -> int | None:
    """Return how many characters of each document are enough; None = all."""
    if not documents.count:
        return None
    sample = next(iter(documents))[:SAMPLE]
    each = SPARE * len(sample) / max(len(tokenizer.encode(sample)), 1)
    return math.ceil(each * tokens / min(documents.count, DOCUMENTS))


def _rows(
    documents: Documents, name: str, tokenizer: Tokenizer, length: int, tokens: int, least: int
) -> Tensor:
    wanted = max(tokens, least * length)
    long = _share(documents, tokenizer, wanted)
    beginnings = (document[:long] for document in documents)
    rows = rows_of(beginnings, tokenizer, length=length, tokens=wanted)
    if len(rows) < least or rows.shape[1] < length:
        raise DataError(
            f"{name} gives {rows.numel():,} tokens in rows, less than {least} rows of "
            f"{length}; give more text, or a smaller --length."
        )
    return rows
