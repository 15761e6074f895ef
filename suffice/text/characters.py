"""A character-level tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from suffice.errors import DataError
from suffice.text import tokenizer
from suffice.text.tokenizer import check_ids

# Cuts a text into its characters, in the format of the tokenizers library.
REPLACEMENTS = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}


class Characters:
    """One id for each character, in the order of their code points; nothing marks a document.

    Args:
        characters: the character of each id, no two alike.

    Raises:
        DataError: if there is none, one twice, or half a surrogate pair.

    Example:
        >>> tokenizer = Characters.of("hello")
        >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2, 2])
        ([1, 3, 2, 0], 'hell')
    """

    begin: None = None
    end: None = None

    def __init__(self, characters: str) -> None:
        self._ids = {character: number for number, character in enumerate(characters)}
        if not characters or len(self._ids) < len(characters):
            raise DataError(f"{characters!r:.60} is not an alphabet; give each character once.")
        self.characters = characters
        self.vocabulary_size = len(characters)
        self._description = json.dumps(_description(self._ids), ensure_ascii=False)
        try:
            self.fingerprint: str = hashlib.sha256(self._description.encode()).hexdigest()
        except UnicodeEncodeError as error:
            raise DataError(f"the alphabet is not text ({error}); repair the text.") from error

    @classmethod
    def of(cls, texts: str | Iterable[str]) -> Characters:
        """Return the tokenizer of all characters that occur in a text or in several."""
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        return cls("".join(sorted(alphabet)))

    @property
    def special(self) -> dict[str, int]:
        """No token is special."""
        return {}

    def encode(self, text: str) -> list[int]:
        """Return the id of each character; DataError if one has none."""
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            strange = ", ".join(map(repr, sorted(set(text) - self._ids.keys())))
            raise DataError(
                f"not among the {self.vocabulary_size:,} characters of the model's alphabet: "
                f"{shorten(strange, 60)}; leave them out, or train on text that has them."
            ) from None

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text; errors as `encode`."""
        return map(self.encode, texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; ConfigError if one is not in the vocabulary."""
        check_ids(ids, self.vocabulary_size)
        return "".join([self.characters[id_] for id_ in ids])

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too."""
        tokenizer.write(folder, self._description, begin=None, end=None)


def alphabet_of(description: dict[str, Any]) -> str | None:
    """Return the characters of a description that `Characters` saved; None if another did."""
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or description != _description(vocabulary):
        return None
    numbers = list(range(len(vocabulary)))
    if list(vocabulary.values()) != numbers or any(len(name) != 1 for name in vocabulary):
        return ""  # which is not a valid alphabet
    return "".join(vocabulary)


def _description(ids: dict[str, int]) -> dict[str, Any]:
    """Return what the tokenizers library needs to do the same; it refuses an unknown character."""
    return tokenizer.description_of(
        pre_tokenizer=REPLACEMENTS,
        decoder={"type": "Fuse"},
        model={"type": "WordLevel", "vocab": ids, "unk_token": "<none>"},
    )
