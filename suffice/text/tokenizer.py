"""What the library asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from suffice.errors import ConfigError, DataError


class Tokenizer(Protocol):
    """Text to token ids and back; `Characters` and `BPE` are two.

    What a text contains never becomes a special token: the ids `begin` and `end` are put between
    documents by whoever joins them, and a text that spells their names is ordinary text.

    Attributes:
        vocabulary_size: ids are 0 .. vocabulary_size - 1.
        begin: id that stands before a document, None where nothing does.
        end: id that stands after a document, None where nothing does.
        fingerprint: sha256 of all that decides an encoding; files of tokens keep it.
    """

    vocabulary_size: int
    begin: int | None
    end: int | None
    fingerprint: str

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without `begin` and `end`."""

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text in turn; several may be encoded at once."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids."""

    def save(self, folder: Path | str) -> None:
        """Write the files that `load_tokenizer(folder)` reads."""


def check_text(text: str) -> None:
    """Refuse what no tokenizer can encode.

    Raises:
        ConfigError: if it is not a text.
        DataError: if it holds half a surrogate pair.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{text!r:.60} is not a text; give a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a text cannot be encoded ({error}); repair it.") from error


def check_ids(ids: Sequence[int], vocabulary_size: int) -> None:
    """Refuse ids that no token has.

    Raises:
        ConfigError: naming the first.
    """
    wrong = next((id_ for id_ in ids if not 0 <= id_ < vocabulary_size), None)
    if wrong is not None:
        raise ConfigError(
            f"id {wrong} is not in the vocabulary; give ids of 0 to {vocabulary_size - 1:,}."
        )
