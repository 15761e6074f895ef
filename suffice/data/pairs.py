"""Sentences in English and Spanish, one beside the other, where they lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from suffice.data.find import DataFile, read
from suffice.data.lines import lines
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
    """Yield the sentences of learners' cards: 118,121 pairs of 2018.

    Raises:
        DataError: if the file is absent, truncated or altered.
    """
    for line in read(ANKI, console=console).decode().splitlines():
        english, spanish = line.split("\t")
        yield english, spanish


def python_docs(console: Console | None) -> Iterator[Pair]:
    """Yield the paragraphs of Python's documentation and of its translation: 41,771 pairs.

    Raises:
        DataError: if the file is absent, truncated or altered.
    """
    for line in read(PYTHON_DOCS, console=console).split(b"\n")[:-1]:
        row = json.loads(line)
        yield row["en"], row["es"]


def of_user(prefix: str) -> Iterator[Pair]:
    """Yield the lines of `prefix`.en beside those of `prefix`.es, as Europarl comes.

    Raises:
        DataError: if a file is absent or cannot be read, or one is longer than the other.
    """
    sides = zip_longest(lines(f"{prefix}.en"), lines(f"{prefix}.es"))
    for number, (english, spanish) in enumerate(sides, 1):
        if english is None or spanish is None:
            raise DataError(
                f"{prefix}.en and {prefix}.es have not as many lines: one ends before line "
                f"{number:,}; give two whole files of one corpus."
            )
        try:
            yield english.decode(), spanish.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number:,} of {prefix}.en or .es is not UTF-8 ({error.reason}); give files "
                "of text in UTF-8."
            ) from error
