"""Writing a file so that nobody ever sees half of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from suffice.errors import DataError


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; move it to `path` when the block ends well.

    An error in the block leaves `path` as it was and removes the temporary file.

    Raises:
        DataError: if the file or its folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror}); make room or the folder writable, or set "
            "XDG_CACHE_HOME to another folder."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
