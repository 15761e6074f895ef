"""Writing a data file, and saying what to do when it cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from suffice.errors import DataError
from suffice.files import replacing


@contextlib.contextmanager
def atomically(
    path: Path, *, advice: str = "set XDG_CACHE_HOME to another folder"
) -> Iterator[Path]:
    """Give a temporary name to write to; move it to `path` when the block ends well.

    An error in the block leaves `path` as it was and removes the temporary file.

    Args:
        path: the file; its folder is made where it is absent.
        advice: what else a user can do when it cannot be written.

    Raises:
        DataError: if the file or its folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror}); make room or the folder writable, or "
            f"{advice}."
        ) from error
