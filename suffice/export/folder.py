"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.files import sync_folder
from suffice.runtime.manifest import MANIFEST, read


@contextlib.contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Give an empty folder to write into; it becomes `out` when the block ends well.

    An error in the block leaves `out` as it was.

    Args:
        out: absent, empty, or an export, which is replaced.

    Raises:
        CheckpointError: if the disk refuses.
        ConfigError: if `out` holds something else.
    """
    _check(out)
    beside = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        beside.mkdir()
        yield beside
        _sync(beside)
        _replace(beside, out)
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"cannot write {out} ({getattr(error, 'strerror', None) or error}); free space, or "
            "give another --out. No half-written folder was left."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check(out: Path) -> None:
    """Refuse to replace what no export wrote."""
    if not out.exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    try:
        told = read(out)
        strange = {path.name for path in out.iterdir()} - {MANIFEST, *told["files"]}
    except (CheckpointError, OSError):
        strange = {out.name}
    if strange:
        raise ConfigError(
            f"--out {out} exists and holds {sorted(strange)[0]!r:.60}, which no export wrote; give "
            "a folder that is not there yet."
        )


def _sweep(out: Path) -> None:
    """Remove what a killed export left beside its folder."""
    left = re.compile(rf"\.{re.escape(out.name)}\.\d+\.part")
    for path in out.parent.iterdir():
        if left.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb+") as written:
            os.fsync(written.fileno())
    sync_folder(folder)


def _replace(new: Path, out: Path) -> None:
    """Put a folder in the place of another; for a moment there is neither, never half of one."""
    old = out.parent / f".{out.name}.{os.getpid()}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(out.parent)
