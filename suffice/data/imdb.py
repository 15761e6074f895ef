"""IMDB: 50,000 film reviews, for or against, as the last words of each."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from suffice.data.archive import convert
from suffice.data.dataset import Dataset
from suffice.data.find import DataFile, cache, locate, read
from suffice.data.last_words import last_words
from suffice.data.partition import held_out
from suffice.data.vocabulary import Vocabulary, check_size, words
from suffice.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

PLACE = "text_classification/imdb"
ROWS = 25_000  # of each part, half of each label
VALIDATION = 0.1  # of the official training part

ARCHIVE = DataFile(
    path=f"{PLACE}/aclImdb_v1.tar.gz",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fa7008942e91923d1658bfe",
    urls=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
)
FILES = {
    "train": DataFile(
        path=f"{PLACE}/train.jsonl.xz",
        sha256="a8e26fc1b1508a9f6ddab7f84203c5bd4f4ca13241079daf7187ce4936764358",
        converted=True,
    ),
    "test": DataFile(
        path=f"{PLACE}/test.jsonl.xz",
        sha256="a17d3864569419dd31ba1b93004f9422507453612d58c5c6d2c606aff53eed16",
        converted=True,
    ),
}


def imdb(
    *, length: int = 32, vocabulary_size: int = 20_000, console: Console | None = None
) -> Dataset:
    """Load the labelled IMDB reviews; a tenth of the training part is held out for validation.

    A review is its words (`vocabulary.words`; HTML breaks leave the word "br") after a start
    token; the last `length` ids are kept, and shorter reviews are padded in front. Words are
    ranked by frequency in the training rows alone.

    Args:
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown. The task
            has `len(dataset.vocabulary)` ids.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front

    Raises:
        ConfigError: if length or vocabulary_size is not legal.
        DataError: if a file is absent and cannot be downloaded, truncated or altered.

    Source: Maas et al. 2011, "Learning Word Vectors for Sentiment Analysis", ACL; tokens as in the
        IMDB set of Keras. Differs: that set ranks words in all 50,000 reviews and leaves id 3
        unused, where our words begin.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ConfigError(f"imdb: length={length!r} tokens is not legal; give an integer >= 1.")
    check_size(vocabulary_size)  # before a download, not after
    texts, labels = _official("train", console)
    train, validation = held_out(len(texts), VALIDATION)
    vocabulary = Vocabulary.build((words(texts[row]) for row in train.tolist()), vocabulary_size)
    official = last_words(texts, labels, vocabulary, length)
    return Dataset(
        name="imdb",
        title=f"IMDB film reviews, last {length} words",
        source="Maas et al. 2011 (research use; the texts belong to their authors)",
        train=official.take(train),
        validation=official.take(validation),
        test=last_words(*_official("test", console), vocabulary, length),
        num_classes=2,
        vocabulary=vocabulary.words,
    )


def _official(part: str, console: Console | None) -> tuple[list[str], list[int]]:
    """Return the texts and labels of the official training or test part."""
    file = FILES[part]
    if locate(file.path) is None:
        _convert(console)
    texts, labels = [], []
    try:
        for line in read(file).splitlines():  # of bytes: text would be cut at U+2028 too
            row = json.loads(line)
            texts.append(row["text"])
            labels.append(row["label"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"{locate(file.path)}, row {len(labels) + 1}, is not a review ({error}); delete the "
            "file and run again."
        ) from error
    counts = {label: labels.count(label) for label in (0, 1)}
    if len(labels) != ROWS or set(counts.values()) != {ROWS // 2}:
        raise DataError(
            f"{locate(file.path)} holds {len(labels):,} reviews, {counts[0]:,} negative and "
            f"{counts[1]:,} positive, not {ROWS:,}, half of each; delete it and run again."
        )
    return texts, labels


def _convert(console: Console | None) -> None:
    """Make the two files in the cache from the official archive, downloaded when absent."""
    ours = locate(ARCHIVE.path) is None
    archive = read(ARCHIVE, console=console)
    status = console.status("converting the IMDB reviews") if console else contextlib.nullcontext()
    with status:
        convert(archive, cache() / PLACE)
    if ours:
        (cache() / ARCHIVE.path).unlink(missing_ok=True)
