"""Writing a file so that nobody ever sees half of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; it becomes `path` when the block ends well.

    The content is on the disk before the name changes, and the name before this returns. An
    error in the block leaves `path` as it was. What a killed writer of the same file left beside
    it is removed; what another one is still writing is not.

    Raises:
        OSError: if the disk refuses; callers say what to do about it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    _remove_leftovers(path)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    leftover = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.part")
    for beside in path.parent.iterdir():
        found = leftover.fullmatch(beside.name)
        if found and not _runs(int(found[1])):
            beside.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Say whether a process of this machine is alive; where that cannot be asked, it is not."""
    if os.name != "posix" or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make names in a folder last through a power cut, where the system can sync folders."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
