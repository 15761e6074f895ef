"""Tokenizers of words, as the review classifiers use them, and of characters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from suffice.data.reviews import PAD, RULES, SPECIAL, START, UNKNOWN, Vocabulary, row_of_words
from suffice.data.reviews import words as words_of
from suffice.errors import DataError
from suffice.text import tokenizer
from suffice.text.tokenizer import check_ids


class Words:
    """One id for each word of a vocabulary: lower case, cut at white space and punctuation.

    Ids 0 to 2 pad a row, start a text and stand for every unknown word.

    Args:
        words: the word of each id, the three special ones first, no two alike.
        length: tokens of a row; the last words of a longer text are read.
        rule: rule that cuts texts into words, from `suffice.data.reviews.RULES`.

    Example:
        >>> tokenizer = Words(("<pad>", "<start>", "<unknown>", "good", "dress"), length=4)
        >>> tokenizer.encode("A GOOD dress!"), tokenizer.decode([3, 4])
        ([2, 3, 4], 'good dress')
        >>> tokenizer.rows(["Good", "It is a good dress"])[0].tolist()
        [[0, 0, 1, 3], [2, 2, 3, 4]]
    """

    begin: None = None
    end: None = None

    def __init__(self, words: Sequence[str], length: int, rule: str = "ascii") -> None:
        self.words, self.length, self.rule = tuple(words), length, rule
        ids = {word: number for number, word in enumerate(self.words)}
        if self.words[: len(SPECIAL)] != SPECIAL or len(ids) < len(self.words):
            raise DataError(
                f"{len(self.words):,} words are not a vocabulary; give {', '.join(SPECIAL)} first, "
                "and each word once."
            )
        self.vocabulary_size = len(ids)
        self._vocabulary = Vocabulary(self.words)
        # as ASCII: half a pair of surrogates is a word like any other
        self._description = json.dumps(_description(ids, length, rule))
        self.fingerprint: str = hashlib.sha256(self._description.encode()).hexdigest()

    @property
    def special(self) -> dict[str, int]:
        """No token is special: a classifier reads no template."""
        return {}

    def encode(self, text: str) -> list[int]:
        """Return the id of each word of a text."""
        return self._vocabulary.encode(words_of(text, self.rule))

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text."""
        return map(self.encode, texts)

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return texts as the rows that a classifier reads.

        A row is a start token and the words of a text, padded in front; of a text that is longer,
        the last words.

        Shapes:
            returns: ids int64 [N, length], and bool [N, length], True at a real token
        """
        ids = torch.full((len(texts), self.length), PAD, dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens = row_of_words(self.encode(text), self.length)
            ids[row, self.length - len(tokens) :] = torch.tensor(tokens)
        return ids, ids != PAD

    def decode(self, ids: Sequence[int]) -> str:
        """Return the words of some ids, padding and starts left out."""
        check_ids(ids, self.vocabulary_size)
        return " ".join(self.words[id_] for id_ in ids if id_ not in (PAD, START))

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too.

        The tokenizer of transformers gives the same rows, see `suffice.text.tokenizer.rows_of`.
        """
        options = tokenizer.row_options(self.length, SPECIAL[PAD]) | {"unk_token": SPECIAL[UNKNOWN]}
        tokenizer.write(folder, self._description, begin=None, end=None, **options)


def words_in(description: dict[str, Any]) -> tuple[tuple[str, ...], int, str] | None:
    """Return words, length and rule of what `Words` saved; None if another tokenizer did."""
    model, cut = description.get("model"), description.get("truncation")
    if not isinstance(model, dict) or model.get("unk_token") != SPECIAL[UNKNOWN]:
        return None
    ids, most = model.get("vocab"), cut.get("max_length") if isinstance(cut, dict) else None
    if not isinstance(ids, dict) or type(most) is not int:
        return None
    for rule in RULES:
        for length, describe in ((most - 1, _description), (most, _earlier)):
            if description == describe(ids, length, rule):
                # other numbers are not a vocabulary
                plain = list(ids.values()) == list(range(len(ids)))
                return tuple(ids) if plain else (), length, rule
    return None


SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, not to the tokenizers library
# as Python's lower() writes a sigma at the end of a word; marks and points do not end a word
FINAL_SIGMA = r"(?<=[\p{L}\p{M}])Σ(?![\p{M}'’.:·]*\p{L})"  # noqa: RUF001


def _description(ids: dict[str, int], length: int, rule: str) -> dict[str, Any]:
    marks, single = RULES[rule]
    cut = _replace(_class_of(marks + SEPARATORS), " ")
    described = tokenizer.description_of(
        normalizer=_in_turn(_replace(FINAL_SIGMA, "ς"), {"type": "Lowercase"}, cut),
        pre_tokenizer=_split(single),
        decoder={"type": "Fuse"},
        model={"type": "WordLevel", "vocab": ids, "unk_token": SPECIAL[UNKNOWN]},
    )
    marked = {"start": START, "token": SPECIAL[START], "pad": PAD, "pad_token": SPECIAL[PAD]}
    return tokenizer.rows_of(described, length, **marked)


def _earlier(ids: dict[str, int], length: int, rule: str) -> dict[str, Any]:
    marks, single = RULES[rule]
    start = {"type": "Prepend", "prepend": f"{SPECIAL[START]} "}
    return {
        **_description(ids, length - 1, rule),
        "normalizer": _in_turn({"type": "Lowercase"}, _replace(_class_of(marks), " "), start),
        "pre_tokenizer": _split(single and f"^{SPECIAL[START]}$|{single}"),
        "post_processor": None,
    }


def _in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def _split(single: str | None) -> dict[str, Any]:
    words: dict[str, Any] = {"type": "WhitespaceSplit"}
    if single is None:
        return words
    each = {"type": "Split", "pattern": {"Regex": single}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [words, each]}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _class_of(characters: str) -> str:
    return "[" + "".join(f"\\{character}" for character in characters) + "]"


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
        self._description = json.dumps(_alphabet_description(self._ids), ensure_ascii=False)
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
    if not isinstance(vocabulary, dict) or description != _alphabet_description(vocabulary):
        return None
    numbers = list(range(len(vocabulary)))
    if list(vocabulary.values()) != numbers or any(len(name) != 1 for name in vocabulary):
        return ""  # which is not a valid alphabet
    return "".join(vocabulary)


def _alphabet_description(ids: dict[str, int]) -> dict[str, Any]:
    """Return what the tokenizers library needs to do the same; it refuses an unknown character."""
    return tokenizer.description_of(
        pre_tokenizer=REPLACEMENTS,
        decoder={"type": "Fuse"},
        model={"type": "WordLevel", "vocab": ids, "unk_token": "<none>"},
    )
