"""Documents that can be gone through again and again, and the two or three parts of a corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from suffice.errors import DataError

VALIDATION = 0.1  # of the documents, or of the text where there is but one


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Texts that each pass reads anew from where they lie; empty ones are passed over.

    Args:
        name: what they are, for errors, such as "stdlib, validation".
        read: begins a pass.
        count: how many there are, for progress; 0 where nobody knows.

    Raises:
        DataError: at the end of a pass that met no text, or where `read` does.

    Example:
        >>> documents = Documents(name="two", read=lambda: ["a", "", "b"])
        >>> list(documents), list(documents)
        (['a', 'b'], ['a', 'b'])
    """

    name: str
    read: Callable[[], Iterable[str]] = field(repr=False)
    count: int = 0

    def __iter__(self) -> Iterator[str]:
        """Yield each text in turn."""
        empty = True
        for text in self.read():
            if text:
                empty = False
                yield text
        if empty:
            raise DataError(f"{self.name} holds no text; give a corpus of more documents.")

    def __length_hint__(self) -> int:
        """Return how many there are, 0 where nobody knows."""
        return self.count


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text to learn a language from.

    Args:
        name: its name or path.
        source: who made it, and its terms.
        train: documents to learn from.
        validation: documents to choose by; none of them is in train.
        test: documents to report on, where the corpus has such a part.
    """

    name: str
    source: str
    train: Documents
    validation: Documents
    test: Documents | None = None


def held_out(key: str) -> bool:
    """Return whether a document is for validation: a fixed tenth, drawn by the digest of its key.

    The same key falls on the same side everywhere and for good, whatever else is in the corpus.

    Args:
        key: the document's name where it has one, else its text.
    """
    return _draw(key) < VALIDATION


def first_held_out(keys: Iterable[str]) -> str:
    """Return the key that is held out before all others."""
    return min(keys, key=_draw)


def _draw(key: str) -> float:
    """Return a number in [0, 1) that looks random and is a function of the key alone."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
