"""Rows of tokens from the beginning of some text.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from suffice.errors import DataError
from suffice.text import Tokenizer


def rows_of(documents: Iterable[str], tokenizer: Tokenizer, *, length: int, tokens: int) -> Tensor:
    """Return the first tokens of some documents, each between the tokenizer's begin and end.

    Args:
        documents: texts, read as far as needed.
        tokenizer: of the model.
        length: of a row, T; one row is shorter where the text is.
        tokens: about how many in all.

    Raises:
        DataError: if there are not two tokens.

    Shapes:
        int64 [B, T]

    Example:
        >>> from suffice.text import Characters
        >>> rows_of(["abcab"], Characters("abc"), length=2, tokens=4)
        tensor([[0, 1],
                [2, 0]])
    """
    ids: list[int] = []
    for one in _encoded(documents, tokenizer):
        ids += one
        if len(ids) >= max(tokens, length):
            break
    if len(ids) < 2:  # noqa: PLR2004
        raise DataError(f"the text holds {len(ids)} tokens; give a longer one.")
    length = min(length, len(ids))
    rows = max(min(tokens, len(ids)) // length, 1)
    return torch.tensor(ids[: rows * length]).view(rows, length)


def _encoded(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    before = [] if tokenizer.begin is None else [tokenizer.begin]
    after = [] if tokenizer.end is None else [tokenizer.end]
    for document in documents:
        yield [*before, *tokenizer.encode(document), *after]
