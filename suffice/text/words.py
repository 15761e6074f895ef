"""Tokenizers of words, as the review classifiers use them, and of characters.

Both encode in Python and describe themselves in the library's format for transformers: run by the
library, characters take twelve times as long, and it refuses half a pair of surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from textwrap import shorten
from typing import Any

from torch import Tensor

from suffice.data.reviews import PAD, RULES, SPECIAL, START, UNKNOWN, Vocabulary, rows_of_words
from suffice.data.reviews import words as words_of
from suffice.errors import DataError
from suffice.text.tokenizer import Tokenizer, check_ids, description_of, row_options, rows_of


class Words(Tokenizer):
    """One id for each word of a vocabulary: lower case, cut at white space and punctuation.

    Ids 0 to 2 pad a row, start a text and stand for every unknown word. The tokenizer of
    transformers gives the same rows, see `suffice.text.tokenizer.rows_of`.

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

    def __init__(self, words: Sequence[str], length: int, rule: str = "ascii") -> None:
        self.words, self.length, self.rule = tuple(words), length, rule
        ids = {word: number for number, word in enumerate(self.words)}
        if self.words[: len(SPECIAL)] != SPECIAL or len(ids) < len(self.words):
            raise DataError(
                f"{len(self.words):,} words are not a vocabulary; give {', '.join(SPECIAL)} first, "
                "and each word once."
            )
        self._vocabulary = Vocabulary(self.words)
        options = row_options(length, SPECIAL[PAD]) | {"unk_token": SPECIAL[UNKNOWN]}
        # as ASCII: half a pair of surrogates is a word like any other
        super().__init__(json.dumps(_words(ids, length, rule)), len(ids), **options)

    def encode(self, text: str) -> list[int]:
        """Return the id of each word of a text."""
        return self._vocabulary.encode(words_of(text, self.rule))

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return texts as the rows that a classifier reads.

        A row is a start token and the words of a text, padded in front; of a text that is longer,
        the last words.

        Shapes:
            returns: ids int64 [N, length], and bool [N, length], True at a real token
        """
        ids = rows_of_words(texts, self._vocabulary, self.length, self.rule)
        return ids, ids != PAD

    def decode(self, ids: Sequence[int]) -> str:
        """Return the words of some ids, padding and starts left out."""
        check_ids(ids, self.vocabulary_size)
        return " ".join(self.words[id_] for id_ in ids if id_ not in (PAD, START))


class Characters(Tokenizer):
    """One id for each character, in the order of their code points; nothing marks a document.

    Args:
        characters: the character of each id, no two alike.

    Example:
        >>> tokenizer = Characters.of("hello")
        >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2, 2])
        ([1, 3, 2, 0], 'hell')
    """

    def __init__(self, characters: str) -> None:
        self._ids = {character: number for number, character in enumerate(characters)}
        if not characters or len(self._ids) < len(characters):
            raise DataError(f"{characters!r:.60} is not an alphabet; give each character once.")
        self.characters = characters
        try:
            description = json.dumps(_characters(self._ids), ensure_ascii=False)
            super().__init__(description, len(characters))
        except UnicodeEncodeError as error:
            raise DataError(f"the alphabet is not text ({error}); repair the text.") from error

    @classmethod
    def of(cls, texts: str | Iterable[str]) -> Characters:
        """Return the tokenizer of all characters that occur in a text or in several."""
        alphabet: set[str] = set()
        for text in texts:  # one at a time: they may be more than memory holds
            alphabet.update(text)
        return cls("".join(sorted(alphabet)))

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

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; ConfigError if one is not in the vocabulary."""
        check_ids(ids, self.vocabulary_size)
        return "".join([self.characters[id_] for id_ in ids])


def words_or_characters(description: dict[str, Any]) -> Words | Characters | None:
    """Return the tokenizer that saved a description; None if it was neither of the two."""
    model, cut = description.get("model"), description.get("truncation")
    ids = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(ids, dict):
        return None
    numbered = list(ids.values()) == list(range(len(ids)))  # else it is refused
    if description == _characters(ids):
        return Characters("".join(ids) if numbered and all(len(n) == 1 for n in ids) else "")
    most = cut.get("max_length") if isinstance(cut, dict) else None
    if type(most) is int:
        for rule in RULES:
            for length, describe in ((most - 1, _words), (most, _earlier_words)):
                if description == describe(ids, length, rule):
                    return Words(tuple(ids) if numbered else (), length, rule)
    return None


SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, not to the tokenizers library
# as Python's lower() writes a sigma at the end of a word; marks and points do not end a word
FINAL_SIGMA = r"(?<=[\p{L}\p{M}])Σ(?![\p{M}'’.:·]*\p{L})"  # noqa: RUF001


def _words(ids: dict[str, int], length: int, rule: str) -> dict[str, Any]:
    marks, single = RULES[rule]
    cut = _replace(_class_of(marks + SEPARATORS), " ")
    described = description_of(
        normalizer=_in_turn(_replace(FINAL_SIGMA, "ς"), {"type": "Lowercase"}, cut),
        pre_tokenizer=_split(single),
        decoder={"type": "Fuse"},
        model={"type": "WordLevel", "vocab": ids, "unk_token": SPECIAL[UNKNOWN]},
    )
    marked = {"start": START, "token": SPECIAL[START], "pad": PAD, "pad_token": SPECIAL[PAD]}
    return rows_of(described, length, **marked)


def _earlier_words(ids: dict[str, int], length: int, rule: str) -> dict[str, Any]:
    marks, single = RULES[rule]
    start = {"type": "Prepend", "prepend": f"{SPECIAL[START]} "}
    return {
        **_words(ids, length - 1, rule),
        "normalizer": _in_turn({"type": "Lowercase"}, _replace(_class_of(marks), " "), start),
        "pre_tokenizer": _split(single and f"^{SPECIAL[START]}$|{single}"),
        "post_processor": None,
    }


def _in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def _split(single: str | None) -> dict[str, Any]:
    words: dict[str, Any] = {"type": "WhitespaceSplit"}
    return {"type": "Sequence", "pretokenizers": [words, _alone(single)]} if single else words


def _alone(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}}
    return split | {"behavior": "Isolated", "invert": False}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _class_of(characters: str) -> str:
    return "[" + "".join(f"\\{character}" for character in characters) + "]"


def _characters(ids: dict[str, int]) -> dict[str, Any]:
    return description_of(
        pre_tokenizer=_alone(r"[\s\S]"),
        decoder={"type": "Fuse"},
        # a name of several characters: the library refuses an unknown one
        model={"type": "WordLevel", "vocab": ids, "unk_token": "<none>"},
    )
