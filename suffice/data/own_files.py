"""Files of the user's that cells were trained on: where they are, and which they are."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from suffice.data.find import locate
from suffice.errors import DataError

LOOKED_INTO = 64  # files; of more, names and sizes tell which they are
ENDS = 1 << 16  # bytes at the start and at the end of a file that are looked into


def found(data: str) -> str:
    """Return the whole path of what is at a path that is given, or of a prefix of two files.

    Args:
        data: of a file, a folder, or PATH where PATH.en and PATH.es are; a path that is not there
            may be one below the data folder.

    Raises:
        DataError: if there is nothing.
    """
    if not _at(Path(data)):
        place = locate(data)
        if place is None:
            raise DataError(
                f"--data {data}: there is no file or folder there; give the path of one that is."
            )
        return str(place.absolute())
    return str(Path(data).absolute())


@lru_cache(maxsize=8)
def digest(path: str) -> str:
    """Return sixteen characters that tell apart what is at a path, wherever it lies.

    Names and sizes of all files count, and of a few files the first and the last bytes too: a
    large set is not read as a whole.

    Raises:
        DataError: if something there cannot be read.
    """
    place, told = Path(path), hashlib.sha256()
    try:
        files = sorted(file for top in _at(place) for file in _below(top))
        for file in files:
            name = file.relative_to(place.parent).as_posix().removeprefix(place.name)
            told.update(os.fsencode(f"{name}\0{file.stat().st_size}\0"))
            if len(files) <= LOOKED_INTO:
                told.update(_ends(file))
    except OSError as error:
        raise DataError(
            f"--data {path} cannot be read ({error.strerror}); give files that can."
        ) from error
    return told.hexdigest()[:16]


def _at(place: Path) -> list[Path]:
    """Return what a path names: itself, or the files it is a prefix of."""
    both = [place.with_name(f"{place.name}.{side}") for side in ("en", "es")]
    return [one for one in (place, *both) if one.exists()]


def _below(top: Path) -> list[Path]:
    if top.is_dir():
        return [file for file in top.rglob("*") if file.is_file()]
    return [top]


def _ends(file: Path) -> bytes:
    with file.open("rb") as opened:
        first = opened.read(ENDS)
        opened.seek(max(len(first), file.stat().st_size - ENDS))
        return first + opened.read(ENDS)
