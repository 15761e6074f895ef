"""The models that are converted, and the texts that each is converted, healed and judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from suffice.convert.sources import Source, open_source
from suffice.data.find import cache, locate
from suffice.errors import DataError
from suffice.heal.text import halves
from suffice.text import Documents, corpus
from suffice.text.jsonl import rows

STORIES = "models/stories260K/stories260K.bin"
NOVELS = "lm/eltec_eng_novels/novels_60.jsonl.xz"
BEGIN = 0.1  # share of a book that is left out: its front matter
TURN = 10  # books after which the parts come round again
BOOKS = {"calibration": (0,), "validation": (1,), "held_out": (2, 3), "train": (4, 5, 6, 7, 8, 9)}
LONG = {"calibration": 16_000, "validation": 16_000, "held_out": 4_000, "train": 100_000}
CALIBRATED = 0.15  # of the training characters: the conversion reads these, the healing the rest


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model and four texts, no two of which share a document or a stretch of one.

    Args:
        source: the model and its tokenizer.
        calibration: what conversions read.
        train: what healings read.
        validation: what chooses their weights.
        held_out: what losses are reported of.
    """

    source: Source
    calibration: Documents
    train: Documents
    validation: Documents
    held_out: Documents


def stories260k(folder: Path) -> Subject:  # noqa: ARG001 - it lies among the data
    """Return the checkpoint of llama2.c on English novels, parted by book.

    Raises:
        DataError: if the files are absent.
    """
    found = [_located(path) for path in (STORIES, NOVELS)]
    parts = {
        name: Documents(name=f"novels, {name}", read=partial(_stretches, found[1], name))
        for name in BOOKS
    }
    return Subject(source=open_source(found[0]), **parts)


def shakespeare_char(folder: Path) -> Subject:
    """Return a model that `suffice train` left in the folder, on the text it was trained on.

    Raises:
        DataError: if it is not there.
    """
    place = folder / "shakespeare_char"
    if not place.is_dir():
        raise DataError(
            f"there is no model at {place}; train it first: suffice train --recipe "
            f"shakespeare_char --minutes 5 --out {place}"
        )
    text = corpus("tinyshakespeare")
    validation, held_out = halves(text.validation)
    first, rest = (
        Documents(name=f"Shakespeare, {name}", read=partial(_cut, text.train, later))
        for name, later in (("calibration", False), ("training", True))
    )
    return Subject(
        source=open_source(place),
        calibration=first,
        train=rest,
        validation=validation,
        held_out=held_out,
    )


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "stories260K": stories260k,
    "shakespeare_char": shakespeare_char,
}
TARGETS = {
    "stories260K": ("gqa:2", "mqa", "optimised", "efficient", "latent:32", "window:64+sinks:4"),
    "shakespeare_char": (
        "gqa:2",
        "mqa",
        "optimised",
        "efficient",
        "latent:64",
        "window:16+sinks:4",
    ),
}


def wanted() -> list[tuple[str, str]]:
    """Return every (subject, target) of the table.

    Example:
        >>> wanted()[0]
        ('stories260K', 'gqa:2')
    """
    return [(name, target) for name in SUBJECTS for target in TARGETS[name]]


def _located(path: str) -> Path:
    found = locate(path)
    if found is None:
        raise DataError(
            f"there is no {cache() / path}; put it there, or below the folder that $SUFFICE_DATA "
            "names."
        )
    return found


def _stretches(path: Path, part: str) -> Iterator[str]:
    """Yield a stretch of each book of a part."""
    for number, text in enumerate(rows(path)):
        if number % TURN in BOOKS[part]:
            begin = int(len(text) * BEGIN)
            yield text[begin : begin + LONG[part]]


def _cut(documents: Documents, later: bool) -> Iterator[str]:
    for text in documents:
        at = int(len(text) * CALIBRATED)
        yield text[at:] if later else text[:at]
