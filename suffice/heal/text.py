"""The three texts of a healing: what is learned, what chooses the weights, what is reported.

Letters: B rows, T tokens.
"""

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

TOKENS = 1 << 14  # of the held-out text that are looked at
PARTS = ("train", "validation", "held_out")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Three texts of which no two share a document.

    Args:
        train: what is learned from.
        validation: what weights are chosen by.
        held_out: what losses are reported of.

    Example:
        >>> import tempfile
        >>> from suffice.text import Characters
        >>> texts = (["abc" * 9], ["bca" * 9], ["cab" * 9])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = Texts.write(Path(folder), texts, Characters("abc"))
        ...     found.rows(5).shape
        torch.Size([5, 6])
    """

    train: TokenFile
    validation: TokenFile
    held_out: TokenFile

    @classmethod
    def write(
        cls,
        folder: Path,
        texts: Iterable[Iterable[str]],
        tokenizer: Tokenizer,
        console: Console | None = None,
    ) -> Texts:
        """Write the tokens of three texts below a folder, unless they are there.

        Args:
            folder: where; made where it is absent.
            texts: the documents of each, in the order of the fields; see `parted`.
            tokenizer: of the models.
            console: where to show progress.

        Raises:
            DataError: if a text cannot be read or holds nothing, or the disk refuses.
        """
        made = {}
        for name, documents in zip(PARTS, texts, strict=True):
            path = folder / f"{name}.bin"
            if header_at(path).exists():
                made[name] = TokenFile(path, tokenizer=tokenizer)
            else:
                made[name] = TokenFile.write(path, documents, tokenizer, console)
        return cls(**made)

    def check(self, *, batch_size: int, length: int) -> None:
        """Refuse a text that is shorter than one batch.

        Raises:
            DataError: naming it.
        """
        least = batch_size * length + 1
        for name in PARTS:
            if len(getattr(self, name)) < least:
                raise DataError(
                    f"the {name.replace('_', '-')} text has {len(getattr(self, name)):,} tokens, "
                    f"less than one batch of {batch_size} rows of {length}; give more text."
                )

    def rows(self, length: int) -> Tensor:
        """Return rows spread over the held-out text, none of which share a predicted token.

        Args:
            length: tokens predicted in each, T.

        Shapes:
            int64 [B, T + 1]
        """
        whole = (len(self.held_out) - 1) // length
        wanted = min(whole, -(-TOKENS // length))
        return self.held_out.take(torch.arange(wanted) * whole // wanted * length, length)


def parted(corpus: Corpus) -> tuple[Documents, Documents, Documents]:
    """Return what of a corpus is learned, chooses, and is reported.

    A corpus with a test part is reported on that; else its validation part is halved, between
    documents where there are several.
    """
    if corpus.test is not None:
        return corpus.train, corpus.validation, corpus.test
    return corpus.train, *halves(corpus.validation)


def halves(documents: Documents) -> tuple[Documents, Documents]:
    """Return two halves of some documents, as equal as whole documents are; one is cut in two.

    Example:
        >>> halved = halves(Documents(name="d", read=lambda: ["abcd", "ef", "g"]))
        >>> list(map(list, halved))
        [['abcd'], ['ef', 'g']]
    """
    sizes = list(map(len, documents))
    names = [f"{documents.name}, {half} half" for half in ("first", "second")]
    if len(sizes) == 1:
        reads = [partial(_half, documents, second) for second in (False, True)]
    else:
        before = list(accumulate(sizes))
        at = min(range(1, len(sizes)), key=lambda at: abs(2 * before[at - 1] - before[-1]))
        reads = [partial(islice, documents, at), partial(islice, documents, at, None)]
    first, second = (Documents(name=n, read=read) for n, read in zip(names, reads, strict=True))
    return first, second


def _half(documents: Documents, second: bool) -> Iterator[str]:
    for text in documents:
        middle = len(text) // 2
        yield text[middle:] if second else text[:middle]
