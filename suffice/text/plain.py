"""Reading text files: UTF-8 and nothing else, .xz decompressed, never more than memory can hold."""

from __future__ import annotations

import contextlib
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from suffice.errors import DataError

LONGEST = 1 << 28  # bytes of one text; it is held in memory whole, and its tokens take far more


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, .xz decompressed.

    Raises:
        DataError: if it is absent or something else, or what is read in the block is damaged.
    """
    if not path.is_file():  # reading a pipe or a device might never end
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a file of text.")
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            yield file
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(
            f"{path} is truncated or damaged ({error}); replace it by a complete copy."
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); check the disk and its rights."
        ) from error


def read_text(path: Path) -> str:
    """Return the content of a text file.

    Raises:
        DataError: if it cannot be read, is too long, or is not UTF-8 text.
    """
    with opened(path) as file:
        content = file.read(LONGEST + 1)
    return decoded(content, path)


def decoded(content: bytes, name: object) -> str:
    """Return UTF-8 text as it is, line ends included; a byte order mark in front is dropped.

    Args:
        content: the bytes of a text.
        name: of their file, for errors.

    Raises:
        DataError: if it is longer than `LONGEST`, holds zero bytes or is not UTF-8.
    """
    if len(content) > LONGEST:
        raise DataError(
            f"{name} holds more than {LONGEST:,} bytes in one text; split it into several files, "
            'or into lines {"text": ...} of a .jsonl file.'
        )
    if b"\0" in content:
        raise DataError(f"{name} is not text (it holds zero bytes); convert it or take it away.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8 text ({error.reason}, byte {error.start:,}); convert it or take "
            "it away."
        ) from error
