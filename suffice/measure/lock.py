"""One program at a time in a working folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from suffice.errors import ConfigError, DataError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other programs from training in a folder during the block; a killed one holds nothing.

    Raises:
        ConfigError: if another program is at work there.
        DataError: if the folder cannot be written, or its disk knows no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(
            f"cannot write in {folder} ({error.strerror}); make room or choose another folder with "
            "--out."
        ) from error
    try:
        try:
            _take(opened)
        except (BlockingIOError, PermissionError) as error:
            raise ConfigError(
                f"another program is training in {folder}; wait for it, or choose another folder "
                "with --out."
            ) from error
        except OSError as error:
            raise DataError(
                f"cannot lock {folder} ({error.strerror}); choose a folder on another disk with "
                "--out."
            ) from error
        yield
    finally:
        os.close(opened)


def _take(opened: int) -> None:
    """Lock an open file, or raise what the system says where another program has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
