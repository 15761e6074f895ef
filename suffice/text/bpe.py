"""Byte-pair tokenizers: trained on the user's text, or read from files of GPT-2 and Llama."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.errors import DataError
from suffice.text import saved
from suffice.text.learning import END, learn
from suffice.text.library import built, told
from suffice.text.tokenizer import check_ids, check_text

if TYPE_CHECKING:
    from rich.console import Console

TOGETHER = 1 << 20  # characters encoded at once, on all cores


class BPE:
    """A byte-pair tokenizer, run by the tokenizers library.

    Args:
        description: the content of a tokenizer.json in the library's format; what it says of
            truncation and padding is not used.
        begin: the token that stands before a document; None where nothing does.
        end: the token that stands after a document; None where nothing does.
        name: of the description's file, for errors.

    Raises:
        ConfigError: if the tokenizers library is not installed.
        DataError: if the description is not that of a byte-pair tokenizer, or lacks a token named.

    Example:
        >>> tokenizer = BPE.train(["low lower lowest"] * 2, 261)
        >>> tokenizer.encode("low"), tokenizer.decode(tokenizer.encode("slow"))
        ([258], 'slow')
    """

    def __init__(
        self,
        description: str,
        *,
        begin: str | None = None,
        end: str | None = None,
        name: object = "the description",
    ) -> None:
        self._name = name
        self._library = built(description, name)
        self._description = description
        self._names = {"begin": begin, "end": end}
        self.vocabulary_size: int = max(self._library.get_vocab().values(), default=-1) + 1
        self.begin = self._id(begin, name)
        self.end = self._id(end, name)
        facts = json.dumps([description, begin, end])
        self.fingerprint: str = hashlib.sha256(facts.encode()).hexdigest()

    def _id(self, token: str | None, name: object) -> int | None:
        found = None if token is None else self._library.token_to_id(token)
        if found is None and token is not None:
            raise DataError(f"{name} has no token {token!r:.40}; name one of its vocabulary.")
        return found

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int, console: Console | None = None
    ) -> BPE:
        """Learn a byte-level vocabulary: 256 bytes, the end token, and the most frequent pairs.

        Any text can be encoded, and decoded to what it was. Texts are cut into words as GPT-2
        does. The same texts give the same tokenizer.

        Args:
            texts: documents to learn from; gone through once, never held together.
            vocabulary_size: how many ids there will be, 257 to 1,048,576.
            console: where to show the progress; None shows nothing.

        Raises:
            ConfigError: if vocabulary_size is not legal, or texts is one text, or the tokenizers
                library is not installed.
            DataError: if the texts do not hold that many pairs that occur twice.
        """
        return cls(learn(texts, vocabulary_size, console), end=END)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            ConfigError: if it is not a text.
            DataError: if it holds half a surrogate pair.
        """
        return next(self.encode_many([text]))

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text, many texts at once on all cores.

        Raises:
            ConfigError, DataError: as `encode`.
        """
        batch: list[str] = []
        room = TOGETHER
        for text in texts:
            batch.append(text)
            room -= len(text)
            if room <= 0:
                yield from self._encoded(batch)
                batch, room = [], TOGETHER
        yield from self._encoded(batch)

    def _encoded(self, texts: list[str]) -> Iterator[list[int]]:
        for text in texts:
            check_text(text)
        with told(self._name):
            found = self._library.encode_batch_fast(texts, add_special_tokens=False)
        for encoding in found:
            yield encoding.ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; special tokens show as their names.

        Bytes that are no UTF-8, such as half a character, show as U+FFFD.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
        check_ids(ids, self.vocabulary_size)
        with told(self._name):
            return self._library.decode(list(ids), skip_special_tokens=False)

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too.

        Raises:
            DataError: if the folder cannot be written.
        """
        saved.write(folder, self._description, **self._names)
