"""A word-level tokenizer, as the review classifiers use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
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

    Raises:
        DataError: if the words are not such a vocabulary.

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

        The tokenizer of transformers gives the same rows, padded and cut on the left.
        """
        pad, _, rare = SPECIAL
        tokenizer.write(
            folder,
            self._description,
            begin=None,
            end=None,
            pad_token=pad,
            unk_token=rare,
            padding_side="left",
            truncation_side="left",
            model_max_length=self.length,
            model_input_names=["input_ids", "attention_mask"],
        )


def words_in(description: dict[str, Any]) -> tuple[tuple[str, ...], int, str] | None:
    """Return words, length and rule of what `Words` saved; None if another tokenizer did."""
    model, cut = description.get("model"), description.get("truncation")
    if not isinstance(model, dict) or model.get("unk_token") != SPECIAL[UNKNOWN]:
        return None
    ids, length = model.get("vocab"), cut.get("max_length") if isinstance(cut, dict) else None
    if not isinstance(ids, dict) or type(length) is not int:
        return None
    rule = next((name for name in RULES if description == _description(ids, length, name)), None)
    if rule is None:
        return None
    if list(ids.values()) != list(range(len(ids))):
        return (), length, rule  # which is not a vocabulary
    return tuple(ids), length, rule


def _description(ids: dict[str, int], length: int, rule: str) -> dict[str, Any]:
    """Return what the tokenizers library needs to do the same.

    The start is part of the normalised text, so that a text that fills the row loses it.
    """
    marks, single = RULES[rule]
    cut = {"type": "Replace", "pattern": {"Regex": _class_of(marks)}, "content": " "}
    steps = [
        {"type": "Lowercase"},
        *([cut] if marks else []),
        {"type": "Prepend", "prepend": f"{SPECIAL[START]} "},
    ]
    split: dict[str, Any] = {"type": "WhitespaceSplit"}
    if single is not None:
        # the start of the text is the one word of several characters that stays whole
        pattern = {"Regex": f"^{SPECIAL[START]}$|{single}"}
        isolated = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [split, isolated]}
    described = tokenizer.description_of(
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=split,
        decoder={"type": "Fuse"},
        model={"type": "WordLevel", "vocab": ids, "unk_token": SPECIAL[UNKNOWN]},
    )
    described["truncation"] = {
        "direction": "Left",
        "max_length": length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    described["padding"] = {
        "strategy": {"Fixed": length},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": PAD,
        "pad_type_id": 0,
        "pad_token": SPECIAL[PAD],
    }
    return described


def _class_of(characters: str) -> str:
    return "[" + "".join(f"\\{character}" for character in characters) + "]"
