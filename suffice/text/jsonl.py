"""Documents as lines of JSON, read as a stream: {"text": ...} on each line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from suffice.errors import DataError
from suffice.text import plain

SUFFIXES = (".jsonl", ".jsonl.xz")


def is_jsonl(path: Path) -> bool:
    """Return whether a file's name says that it holds lines of JSON."""
    return path.name.endswith(SUFFIXES)


def rows(path: Path) -> Iterator[str]:
    """Yield the text of each line of a .jsonl or .jsonl.xz file; one line is held at a time.

    Raises:
        DataError: as `texts`, or if the file cannot be read.
    """
    with plain.opened(path) as file:
        yield from texts(iter(partial(file.readline, plain.LONGEST + 1), b""), path)


def texts(lines: Iterable[bytes], name: object) -> Iterator[str]:
    r"""Yield the string under "text" of each line; other keys and blank lines are passed over.

    Args:
        lines: the lines of a file.
        name: of the file, for errors.

    Raises:
        DataError: if a line is too long, or not a JSON object with a string under "text".

    Example:
        >>> list(texts([b'{"text": "one"}\n', b'{"id": 2, "text": "two"}\n'], "a file"))
        ['one', 'two']
    """
    for number, line in enumerate(lines, 1):
        if len(line) > plain.LONGEST:
            raise DataError(
                f"{name}, line {number:,}, is longer than {plain.LONGEST:,} bytes; cut the "
                "document into several."
            )
        if line.strip():
            yield _text(line, f"{name}, line {number:,}")


def _text(line: bytes, where: str) -> str:
    wanted = 'a line is a JSON object with a string under "text".'
    try:
        row = json.loads(line)
        text = row.get("text") if isinstance(row, dict) else None
        if isinstance(text, str):
            text.encode()  # JSON can spell halves of a surrogate pair, which are no text
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}, is not a document ({error}); {wanted}") from error
    if not isinstance(text, str):
        raise DataError(f"{where}, is not a document; {wanted}")
    return text
