"""English-Spanish translation pairs, tokenized into words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch

from suffice.data.dataset import IGNORE_INDEX, Dataset, Split, check_counts, draw_rows, sha1_of
from suffice.data.files import DataFile, lines, read
from suffice.data.reviews import PAD, START, Vocabulary, check_vocabulary_size, words
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console


Pair = tuple[str, str]

ANKI = DataFile(
    path="translation/anki_spa_eng/spa.txt.xz",
    sha256="a2c37762eb7d9a7bf1aa0958bec55f2016ec6aaab6f7c1503822341587df2ba6",
)
PYTHON_DOCS = DataFile(
    path="translation/python_docs_en_es/pairs.jsonl.xz",
    sha256="ea586c288f8ba28e89939e48a155abc9ae73e7bef01a9c05841bcddf975ab22b",
)


def anki(console: Console | None) -> Iterator[Pair]:
    """Yield the sentences of learners' cards: 118,121 pairs of 2018."""
    for line in read(ANKI, console=console).decode().splitlines():
        english, spanish = line.split("\t")
        yield english, spanish


def python_docs(console: Console | None) -> Iterator[Pair]:
    """Yield the paragraphs of Python's documentation and of its translation: 41,771 pairs."""
    for line in read(PYTHON_DOCS, console=console).split(b"\n")[:-1]:
        row = json.loads(line)
        yield row["en"], row["es"]


def parallel_files(prefix: str) -> Iterator[Pair]:
    """Yield pairs of lines of `prefix`.en and `prefix`.es, the format of Europarl."""
    sides = zip_longest(lines(f"{prefix}.en"), lines(f"{prefix}.es"))
    for number, (english, spanish) in enumerate(sides, 1):
        if english is None or spanish is None:
            raise DataError(
                f"{prefix}.en and {prefix}.es differ in length: one ends before line "
                f"{number:,}; give two whole files of one corpus."
            )
        try:
            yield english.decode(), spanish.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number:,} of {prefix}.en or .es is not UTF-8 ({error.reason}); give files "
                "of text in UTF-8."
            ) from error


END = "<end>"  # ends every translation; no text has it, for its marks are cut off
_MARKS = "¿¡«»“”„…—–·•"
_PLAIN = str.maketrans({**dict.fromkeys(_MARKS, " "), "’": "'", "‘": "'"})

Words = tuple[list[str], list[str]]


def translation_es(
    *,
    length: int = 40,
    vocabulary_size: int = 23_000,
    held_out: int = 2_000,
    path: str | None = None,
    rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load pairs of English and Spanish sentences.

    Tokens are words: lower case, cut at white space and at punctuation, which is left out, as in
    the example of Keras that the paper follows. A source is its English words, a target the
    Spanish ones after a start token; the labels are each next word and at last the word `<end>`.
    Both are padded at the end. Words that are not in the vocabulary are `<unknown>`, in labels
    too. Pairs of `length` words or more on a side are left out.

    Parts are cut by the English words: no English side is in two of them, whatever its
    punctuation. The sides come in the order of their sha1; the first are for the test, the next
    for validation. Words are ranked by frequency in the training rows alone.

    Args:
        length: words of a source, and of a target with its start, at most.
        vocabulary_size: the most ids there may be on each side, >= 5.
        held_out: different English sides for validation, and the same number for the test.
        path: path of the user's own pairs, PATH.en and PATH.es with a sentence a line, such as
            europarl-v7.es-en; they replace those of the documentation. None uses the
            documentation's.
        rows: training pairs that are kept at most, drawn by a fixed permutation; None takes all.

    Shapes:
        source, inputs, labels: int64 [N, length]; valid, source_valid: bool [N, length]

    Source: manythings.org/anki and tatoeba.org; python-docs-es. Differs: the paper adds Europarl
        (Koehn 2005) to the cards and does not say how long its rows and how large its vocabularies
        are; 23,000 words on each side give models of its sizes, 93 to 104 million parameters.
    """
    check_counts("translation_es", least=2, length=length)
    check_counts("translation_es", held_out=held_out, rows=rows)
    check_vocabulary_size(vocabulary_size)
    more = python_docs(console) if path is None else parallel_files(path)
    parts = _parts(list(_fitting(chain(anki(console), more), length)), held_out, rows)
    sides = [Vocabulary.build(side, vocabulary_size) for side in zip(*parts["train"], strict=True)]
    return Dataset(
        name="translation_es",
        title=f"English to Spanish, {len(parts['train']):,} pairs below {length} words",
        source="tatoeba.org (CC BY 2.0 FR) and "
        + ("Python's documentation (PSF, CC0)" if path is None else "the user's own"),
        **{part: _split(pairs, *sides, length) for part, pairs in parts.items()},
        num_classes=len(sides[1].words),
        vocabulary=sides[1].words,
        source_vocabulary=sides[0].words,
        scores=("bleu", "perplexity"),
    )


def sentence_words(text: str) -> list[str]:
    """Return the words of a sentence of either language."""
    return words(text.translate(_PLAIN))


def _fitting(pairs: Iterable[tuple[str, str]], length: int) -> Iterator[Words]:
    for pair in pairs:
        english, spanish = map(sentence_words, pair)
        if 0 < len(english) < length and 0 < len(spanish) < length:
            yield english, [*spanish, END]


def _parts(pairs: list[Words], held_out: int, rows: int | None) -> dict[str, list[Words]]:
    keys = [" ".join(english) for english, _ in pairs]
    order = sorted(set(keys), key=sha1_of)
    if len(order) <= 2 * held_out:
        raise DataError(
            f"translation_es: {len(order):,} different English sides, of which {held_out:,} are "
            "for validation and for the test each; give more pairs or a smaller held_out."
        )
    place = dict.fromkeys(order[:held_out], "test")
    place |= dict.fromkeys(order[held_out : 2 * held_out], "validation")
    parts: dict[str, list[Words]] = {"train": [], "validation": [], "test": []}
    for key, pair in zip(keys, pairs, strict=True):
        parts[place.get(key, "train")].append(pair)
    chosen = draw_rows(len(parts["train"]), rows).tolist()
    parts["train"] = [parts["train"][row] for row in chosen]
    return parts


def _split(pairs: Sequence[Words], english: Vocabulary, spanish: Vocabulary, length: int) -> Split:
    shape = (len(pairs), length)
    source, inputs = np.full(shape, PAD, np.int64), np.full(shape, PAD, np.int64)
    labels = np.full(shape, IGNORE_INDEX, np.int64)
    for row, (source_words, target_words) in enumerate(pairs):
        ids = spanish.encode(target_words)
        source[row, : len(source_words)] = english.encode(source_words)
        inputs[row, : len(ids)] = [START, *ids[:-1]]
        labels[row, : len(ids)] = ids
    tensors = [torch.from_numpy(each) for each in (inputs, labels, source)]
    return Split(*tensors[:2], tensors[0] != PAD, tensors[2], tensors[2] != PAD)
