"""Lines of the user's own files, plain or compressed."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from suffice.errors import DataError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a file, without their ends; one named .gz or .xz is decompressed.

    Raises:
        DataError: if it is absent, cannot be read, or is truncated.
    """
    opened = OPENERS.get(Path(path).suffix, open)
    try:
        with opened(path, "rb") as file:
            for line in file:
                yield line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {path} ({reason}); give the path of a whole file, plain, .gz or .xz."
        ) from error
