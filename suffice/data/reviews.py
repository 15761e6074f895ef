"""Reviews of one to five stars, as lines of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from suffice.data.dataset import Dataset
from suffice.data.last_words import last_words
from suffice.data.partition import permutation
from suffice.data.vocabulary import Vocabulary, check_size, words
from suffice.errors import ConfigError, DataError

STARS = 5
NAMES = (("rating", "text"), ("overall", "reviewText"))  # ours, and those of Ni et al. 2019
PARTS = {0: "test", 1: "validation"}  # the digits of a text's digest that are held out


def check(task: str, length: int, vocabulary_size: int, rows: int | None) -> None:
    """Refuse options before a file is read.

    Raises:
        ConfigError: if one is not legal.
    """
    given = {"length": length} if rows is None else {"length": length, "rows": rows}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{task}: {name}={value!r} is not legal; give an integer >= 1.")
    check_size(vocabulary_size)


def reviews(
    lines: Iterable[bytes],
    *,
    where: str,
    name: str,
    title: str,
    source: str,
    length: int,
    vocabulary_size: int,
    rows: int | None,
) -> Dataset:
    """Return reviews as a task: the last words of each, and how many stars it gives, from 0.

    Which part a review is of depends on its text alone: the sha1 of the text, modulo 10, is 0 for
    the test and 1 for validation. So equal texts are never in two parts.

    Args:
        lines: objects with "rating" and "text", or "overall" and "reviewText"; those without text
            are passed over.
        where: the file, for messages.
        name: of the task.
        title: of the task.
        source: of the data.
        length: tokens of each row.
        vocabulary_size: the most ids there may be.
        rows: training rows that are kept at most, drawn by a fixed permutation; None = all.

    Raises:
        DataError: if a line is no review, or a part has none.
    """
    return classified(
        ((text, stars - 1) for text, stars in _parsed(lines, where)),
        where=where,
        what="review",
        name=name,
        title=title,
        source=source,
        num_classes=STARS,
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )


def classified(
    pairs: Iterable[tuple[str, int]],
    *,
    where: str,
    what: str,
    name: str,
    title: str,
    source: str,
    num_classes: int,
    length: int,
    vocabulary_size: int,
    rows: int | None,
) -> Dataset:
    """Return texts and their classes as a task, parted as `reviews` says.

    Args:
        pairs: texts, and the number of the class of each.
        where: the file, for messages.
        what: a text is, in a word.
        name: of the task.
        title: of the task.
        source: of the data.
        num_classes: how many classes there are.
        length: tokens of each row.
        vocabulary_size: the most ids there may be.
        rows: training rows that are kept at most; None = all.

    Raises:
        DataError: if a part has no text.
    """
    parts: dict[str, tuple[list[str], list[int]]] = {
        part: ([], []) for part in ("train", "validation", "test")
    }
    for text, label in pairs:
        texts, labels = parts[part_of(text)]
        texts.append(text)
        labels.append(label)
    for part, (texts, _) in parts.items():
        if not texts:
            raise DataError(f"{where} holds no {what} for {part}; give a file of more {what}s.")
    kept = permutation(len(parts["train"][0]))[:rows].sort().values.tolist()
    parts["train"] = tuple([column[row] for row in kept] for column in parts["train"])
    vocabulary = Vocabulary.build(map(words, parts["train"][0]), vocabulary_size)
    return Dataset(
        name=name,
        title=f"{title}, last {length} words",
        source=source,
        **{part: last_words(*given, vocabulary, length) for part, given in parts.items()},
        num_classes=num_classes,
        vocabulary=vocabulary.words,
        scores=("balanced_accuracy",),
    )


def part_of(text: str) -> str:
    """Return which part a review is of.

    Example:
        >>> part_of("good"), part_of("fine")
        ('train', 'train')
    """
    # half a pair of surrogates, which JSON can hold, counts as any other character
    digest = hashlib.sha1(text.encode(errors="surrogatepass")).hexdigest()
    return PARTS.get(int(digest, 16) % 10, "train")


def _parsed(lines: Iterable[bytes], where: str) -> Iterator[tuple[str, int]]:
    """Yield text and stars of each review that has a text."""
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            stars, text = next(
                (row[rating], row.get(text)) for rating, text in NAMES if rating in row
            )
            if stars not in range(1, STARS + 1) or not isinstance(text or "", str):
                raise ValueError("rating and text are not 1 to 5 and words")
        except (ValueError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise DataError(
                f"{where}, row {number}, is not a review ({str(error) or 'it has no rating'}); "
                'give lines of JSON such as {"rating": 5, "text": "Good."}.'
            ) from error
        if text and text.strip():
            yield text, int(stars)
