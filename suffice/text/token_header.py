"""What a file of tokens says of itself, and the names of the files beside it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffice.errors import ConfigError, DataError
from suffice.fields import check_fields
from suffice.text.saved import parsed

VERSION = 1
LARGEST = 1 << 16  # bytes of a header


@dataclass(frozen=True, kw_only=True)
class TokenHeader:
    """The facts of a file of tokens.

    Args:
        tokens: how many there are, >= 1.
        documents: how many documents, >= 1.
        vocabulary_size: ids are 0 .. vocabulary_size - 1.
        begin: id before each document, None where nothing is.
        end: id after each document, None where nothing is.
        tokenizer: fingerprint of the tokenizer.
        version: of the format.

    Raises:
        ConfigError: if a value is not legal.
    """

    tokens: int
    documents: int
    vocabulary_size: int
    begin: int | None
    end: int | None
    tokenizer: str
    version: int = VERSION

    def __post_init__(self) -> None:
        check_fields(self)
        special = [id_ for id_ in (self.begin, self.end) if id_ is not None]
        if (
            self.version != VERSION
            or not 1 <= self.documents <= self.tokens
            or not 1 <= self.vocabulary_size <= 1 << 32
            or not all(0 <= id_ < self.vocabulary_size for id_ in special)
        ):
            raise ConfigError(
                f"{self} is not legal; 1 <= documents <= tokens, ids below vocabulary_size and "
                f"version {VERSION} are."
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id."""
        return dtype_for(self.vocabulary_size)


def dtype_for(vocabulary_size: int) -> np.dtype[Any]:
    """Return uint16 where every id fits, else uint32; little-endian on every machine.

    Example:
        >>> dtype_for(50_257).name, dtype_for(128_256).name
        ('uint16', 'uint32')
    """
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def header_at(path: Path) -> Path:
    """Return where the header of the tokens at `path` lies."""
    return path.with_name(f"{path.name}.json")


def starts_at(path: Path) -> Path:
    """Return where the documents' starts of the tokens at `path` lie: uint64, little-endian."""
    return path.with_name(f"{path.name}.starts")


def to_text(header: TokenHeader) -> str:
    """Return the header as a file of JSON."""
    return json.dumps(dataclasses.asdict(header), indent=2) + "\n"


def read_header(path: Path) -> TokenHeader:
    """Return the header of the tokens at `path`.

    Raises:
        DataError: if there is none, or it is not what `to_text` gives.
    """
    at = header_at(path)
    try:
        with at.open("rb") as file:
            text = file.read(LARGEST).decode("ascii", "replace")
    except OSError as error:
        raise DataError(
            f"{at} cannot be read ({error.strerror}); without it {path} is not a whole file of "
            "tokens. Write it anew with TokenFile.write."
        ) from error
    facts = parsed(text, at)
    due = {field.name for field in dataclasses.fields(TokenHeader)}
    if facts.keys() != due:
        raise DataError(f"{at} has the keys {sorted(facts)!s:.200}; {sorted(due)} are due.")
    try:
        return TokenHeader(**facts)
    except ConfigError as error:
        raise DataError(f"{at} is damaged: {error} Write the tokens anew.") from error
