"""Finding a data file: the user's folder, then the cache, then the official address.

A file is believed only when its content has the known sha256. The figure is that of the content
after decompression, so that a file compressed anew with other settings is still the same file.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.data.download import download
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = "SUFFICE_DATA"  # names the user's folder of data


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file that a task reads.

    Args:
        path: place below the data folder, such as "vision/mnist/train-labels-idx1-ubyte.gz".
        sha256: of the content after decompression, for .gz and .xz; of the file itself for
            archives (.tar.gz).
        urls: official addresses, tried in order.
        converted: whether the file may be our conversion of an archive, whose sha256 stands
            beside it in a file of the same name with ".sha256" added.
    """

    path: str
    sha256: str
    urls: tuple[str, ...] = ()
    converted: bool = False


def folder() -> Path | None:
    """Return the folder that $SUFFICE_DATA names, None when it is not set.

    Raises:
        DataError: if it is set and not a folder.
    """
    value = os.environ.get(FOLDER)
    if not value:
        return None
    if not os.path.isdir(value):
        raise DataError(f"{FOLDER}={value} is not a folder; name an existing folder, or unset it.")
    return Path(value)


def cache() -> Path:
    """Return the user's cache: $XDG_CACHE_HOME/suffice, or ~/.cache/suffice.

    Raises:
        DataError: if the user has no home folder.
    """
    value = os.environ.get("XDG_CACHE_HOME", "")
    if Path(value).is_absolute():  # the XDG standard tells to ignore a relative one
        return Path(value) / "suffice"
    try:
        return Path.home() / ".cache" / "suffice"
    except RuntimeError as error:
        raise DataError(
            f"there is no home folder to keep data in; set XDG_CACHE_HOME or {FOLDER} to a folder."
        ) from error


def locate(path: str) -> Path | None:
    """Return where `path` is: below $SUFFICE_DATA, else in the cache, else None."""
    for root in (folder(), cache()):
        if root is not None and os.path.exists(root / path):
            return root / path
    return None


def read(file: DataFile, *, console: Console | None = None) -> bytes:
    """Return the checked content of a file, decompressed; download it when it is absent.

    Args:
        file: what to read.
        console: where a download shows its progress; None shows nothing.

    Raises:
        DataError: if the file is truncated or altered, or absent and not to be downloaded.
    """
    found = locate(file.path)
    if found is not None:
        try:
            return _checked(file, found)
        except DataError as error:
            raise DataError(
                f"{found} {error}; delete it and run again to fetch it, or replace it by a "
                "complete copy."
            ) from error
    try:
        target = cache() / file.path
        return download(file.urls, target, lambda at: _checked(file, at), console=console)
    except DataError as error:
        raise DataError(_absent(file, str(error).rstrip("."))) from error


def _absent(file: DataFile, reason: str) -> str:
    user = folder()
    places = [f"{FOLDER} (not set)" if user is None else f"{FOLDER}={user}", str(cache())]
    return (
        f"{file.path} was found neither below {' nor below '.join(places)} and could not be "
        f"downloaded ({reason or 'it has no address'}); put it at {cache() / file.path}, or at "
        f"{file.path} below a folder of yours that {FOLDER} names."
    )


def _checked(file: DataFile, at: Path) -> bytes:
    """Return the content of `file`, which lies at `at`, or tell what is wrong with it."""
    try:
        content = _decompressed(at.read_bytes(), file.path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"is truncated or damaged ({error})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256 and not (file.converted and digest == _recorded(at)):
        raise DataError(f"is truncated or altered (sha256 {digest}, not {file.sha256})")
    return content


def _decompressed(data: bytes, path: str) -> bytes:
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith(".gz") and not path.endswith(".tar.gz"):
        return gzip.decompress(data)
    return data


def record(at: Path) -> Path:
    """Return the place of the sha256 that a conversion records beside the file at `at`."""
    return at.with_name(f"{at.name}.sha256")


def _recorded(at: Path) -> str:
    beside = record(at)
    return beside.read_text("ascii", errors="replace").strip() if beside.is_file() else ""
