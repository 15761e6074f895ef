"""A corpus as a task: rows of text, of which every next token is asked.

Letters: N rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suffice.data import TASKS, Dataset, Split
from suffice.data.drawn import check_counts
from suffice.data.partition import permutation
from suffice.errors import DataError
from suffice.text.chosen import choose_tokenizer
from suffice.text.corpus import corpus as corpus_of
from suffice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rich.console import Console

VALIDATION = 10  # one of so many training rows


def text(
    *,
    corpus: str = "tinyshakespeare",
    tokenizer: str = "characters",
    vocabulary_size: int | None = None,
    length: int = 64,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Cut a corpus into rows and ask for the token behind each token.

    The documents of a part follow each other, with the tokenizer's end between them where it has
    one, and are cut every `length` tokens; what is left at the end is let go. The last tenth of
    the rows of the training part is for validation. The test is the corpus' own, or where it has
    none, its validation part, which nothing else reads.

    Args:
        corpus: its name or path, see `suffice.text.corpus`.
        tokenizer: as of `choose_tokenizer`.
        vocabulary_size: of the tokenizer "bpe", and of it alone.
        length: tokens of a row, >= 1.
        rows: training rows that are kept at most, drawn by a fixed permutation; None = all.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs, labels: int64 [N, length]

    Raises:
        ConfigError: if an option is not legal.
        DataError: if the corpus is absent or too short.
    """
    check_counts("text", length=length, **({} if rows is None else {"rows": rows}))
    found = corpus_of(corpus, console=console)
    cut = choose_tokenizer(tokenizer, found, vocabulary_size=vocabulary_size, console=console)
    learned = _split(found.train, cut, length, corpus)
    held = len(learned) // VALIDATION
    if not held:
        raise DataError(
            f"text: {corpus} has {len(learned)} training rows of {length} tokens, of which a tenth "
            "is for validation; give a longer corpus or a smaller length."
        )
    first = len(learned) - held
    return Dataset(
        name="text",
        title=f"{found.name} in rows of {length} tokens",
        source=found.source,
        train=learned.take(permutation(first)[:rows].sort().values),
        validation=learned.take(torch.arange(first, len(learned))),
        test=_split(found.test or found.validation, cut, length, corpus),
        num_classes=cut.vocabulary_size,
        scores=("perplexity",),
    )


def _split(documents: Iterable[str], tokenizer: Tokenizer, length: int, corpus: str) -> Split:
    """Return the rows of some documents."""
    end = [] if tokenizer.end is None else [tokenizer.end]
    joined = chain.from_iterable([*one, *end] for one in tokenizer.encode_many(documents))
    ids: Tensor = torch.tensor(list(joined))
    count = (len(ids) - 1) // length
    if count < 1:
        raise DataError(
            f"text: a part of {corpus} has {len(ids)} tokens, too few for a row of {length} and "
            "the token behind it; give a longer corpus or a smaller length."
        )
    inputs, labels = (ids[at : at + count * length].view(count, length) for at in (0, 1))
    return Split(inputs.clone(), labels.clone())


TASKS["text"] = text
