"""The three texts of a healing: for training, for choosing weights, and for the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suffice.errors import DataError
from suffice.text import Corpus, Documents, TokenFile, Tokenizer
from suffice.text.token_file import header_at

if TYPE_CHECKING:
    from rich.console import Console

HELD_OUT_TOKENS = 1 << 14  # that losses are reported on
PARTS = ("train", "validation", "held_out")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Three texts that share no document.

    Example:
        >>> import tempfile
        >>> from suffice.text import Characters
        >>> texts = (["abc" * 9], ["bca" * 9], ["cab" * 9])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = Texts.write(Path(folder), texts, Characters("abc"))
        ...     written.rows(5).shape
        torch.Size([5, 6])
    """

    train: TokenFile  # text to train on
    validation: TokenFile  # text to choose weights by
    held_out: TokenFile  # text to report losses on

    @classmethod
    def write(
        cls,
        folder: Path,
        texts: Iterable[Iterable[str]],
        tokenizer: Tokenizer,
        console: Console | None = None,
    ) -> Texts:
        """Write the tokens of three texts into a folder, or open those that it holds already.

        Args:
            folder: a folder, created if absent.
            texts: the documents of each, in the order of the fields; see `split_corpus`.
            tokenizer: tokenizer of the models.
            console: console to show progress on.

        Raises:
            DataError: if a text cannot be read or is empty, or the files cannot be written.
        """
        files = {}
        for name, documents in zip(PARTS, texts, strict=True):
            path = folder / f"{name}.bin"
            if header_at(path).exists():
                files[name] = TokenFile(path, tokenizer=tokenizer)
            else:
                files[name] = TokenFile.write(path, documents, tokenizer, console)
        return cls(**files)

    def check(self, *, batch_size: int, length: int) -> None:
        """Check that each text has at least one batch.

        Raises:
            DataError: naming it.
        """
        minimum = batch_size * length + 1
        for name in PARTS:
            if len(getattr(self, name)) < minimum:
                raise DataError(
                    f"the {name.replace('_', '-')} text has {len(getattr(self, name)):,} tokens, "
                    f"less than one batch of {batch_size} rows of {length}; give more text."
                )

    def rows(self, length: int) -> Tensor:
        """Return rows spread evenly over the held-out text, which share no predicted token.

        Args:
            length: predicted tokens per row, T.

        Shapes:
            int64 [B, T + 1]
        """
        available = (len(self.held_out) - 1) // length
        count = min(available, -(-HELD_OUT_TOKENS // length))
        return self.held_out.take(torch.arange(count) * available // count * length, length)


def split_corpus(corpus: Corpus) -> tuple[Documents, Documents, Documents]:
    """Return the training, validation and test part; without a test part validation is halved."""
    if corpus.test is not None:
        return corpus.train, corpus.validation, corpus.test
    return corpus.train, *halves(corpus.validation)


def halves(documents: Documents) -> tuple[Documents, Documents]:
    """Return two halves of documents, as equal as whole documents allow; a single one is cut."""
    sizes = list(map(len, documents))
    names = [f"{documents.name}, {half} half" for half in ("first", "second")]
    if len(sizes) == 1:
        reads = [partial(_half_of_each, documents, second) for second in (False, True)]
    else:
        ends = list(accumulate(sizes))
        cut = min(range(1, len(sizes)), key=lambda cut: abs(2 * ends[cut - 1] - ends[-1]))
        reads = [partial(islice, documents, cut), partial(islice, documents, cut, None)]
    first, second = (Documents(name=n, read=read) for n, read in zip(names, reads, strict=True))
    return first, second


def _half_of_each(documents: Documents, second: bool) -> Iterator[str]:
    for text in documents:
        middle = len(text) // 2
        yield text[middle:] if second else text[:middle]
