"""Data files: located in the user's folder, then the cache, then downloaded and verified.

A file is accepted only when its content has the known sha256. The digest is that of the content
after decompression, so that a file compressed again with other settings is still the same file.

Data sets of the `datasets` library are on the Hugging Face hub, or in a folder that it saved.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from suffice.errors import ConfigError, DataError, installed_for
from suffice.utils.files import replacing
from suffice.utils.progress import bar

if TYPE_CHECKING:
    from rich.console import Console


FOLDER = "SUFFICE_DATA"  # environment variable: the user's folder of data
TIMEOUT = 10.0  # seconds without an answer or a byte before a download is given up
CHUNK = 1 << 16  # bytes
LARGEST_MEMBER = 1 << 28  # bytes of a file in an archive; the largest of any data set has half


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file that a task reads."""

    path: str  # below the data folder, such as "vision/mnist/train-labels-idx1-ubyte.gz"
    sha256: str  # of the content after decompression; of an archive (.tar.gz) itself
    urls: tuple[str, ...] = ()  # official addresses, tried in order
    converted: bool = False
    """Whether it may be our conversion of an archive, whose sha256 is in a file next to it."""


def folder() -> Path | None:
    """Return the folder that $SUFFICE_DATA names, None when it is not set."""
    value = os.environ.get(FOLDER)
    if not value:
        return None
    if not os.path.isdir(value):
        raise DataError(f"{FOLDER}={value} is not a folder; name an existing folder, or unset it.")
    return Path(value)


def cache() -> Path:
    """Return the user's cache: $XDG_CACHE_HOME/suffice, or ~/.cache/suffice."""
    value = os.environ.get("XDG_CACHE_HOME", "")
    if Path(value).is_absolute():  # the XDG standard says to ignore a relative one
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
    """Return the checked content of a file, decompressed; download it when it is absent."""
    place = locate(file.path)
    if place is None:
        return _download(file, console)
    try:
        return _content(file, place)
    except DataError as error:
        raise DataError(
            f"{place} {error}; delete it and run again to fetch it, or replace it by a complete "
            "copy."
        ) from error


def record(place: Path) -> Path:
    """Return the path of the sha256 of a conversion, next to the file."""
    return place.with_name(f"{place.name}.sha256")


def _content(file: DataFile, place: Path) -> bytes:
    try:
        content = place.read_bytes()
        if file.path.endswith(".xz"):
            content = lzma.decompress(content)
        elif file.path.endswith(".gz") and not file.path.endswith(".tar.gz"):
            content = gzip.decompress(content)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"is truncated or damaged ({error})") from error
    sha256 = hashlib.sha256(content).hexdigest()
    legal = {file.sha256}
    if file.converted and record(place).is_file():
        legal.add(record(place).read_text("ascii", errors="replace").strip())
    if sha256 not in legal:
        raise DataError(f"is truncated or altered (sha256 {sha256}, not {file.sha256})")
    return content


def _download(file: DataFile, console: Console | None) -> bytes:
    target, reasons = cache() / file.path, []
    for url in file.urls:
        try:
            with atomically(target) as temporary:
                with temporary.open("wb") as out:
                    for chunk in _chunks(url, console):
                        out.write(chunk)
                return _content(file, temporary)
        except DataError as error:
            reasons.append(f"{url}: {str(error).rstrip('.')}")
    user = folder()
    raise DataError(
        f"{file.path} was found neither below {FOLDER}{'=' if user else ' (not set)'}{user or ''} "
        f"nor below {cache()} and could not be downloaded "
        f"({'; '.join(reasons) or 'it has no address'}); put it at {target}, or at {file.path} "
        f"below a folder of yours that {FOLDER} names."
    )


def _chunks(url: str, console: Console | None) -> Iterator[bytes]:
    """Yield the body of `url`; every failure of the network is a DataError."""
    try:
        request = Request(url, headers={"User-Agent": "suffice"})
        with urlopen(request, timeout=TIMEOUT) as response:
            total, received = int(response.headers.get("Content-Length", 0)), 0
            with bar(console, url.rpartition("/")[2], total, unit="bytes") as advance:
                while chunk := response.read(CHUNK):
                    received += len(chunk)
                    advance(len(chunk))
                    yield chunk
    except HTTPError as error:
        error.close()
        raise DataError(str(error)) from error
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(str(error).strip("<>") or type(error).__name__) from error
    if received < total:
        raise DataError(f"the connection closed after {received:,} of {total:,} bytes")


@contextlib.contextmanager
def atomically(
    path: Path, *, advice: str = "set XDG_CACHE_HOME to another folder"
) -> Iterator[Path]:
    """Yield a temporary name to write to; move it to `path` when the block ends well.

    `advice` is what else a user can do when the file cannot be written, for the DataError.
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


def members(
    archive: bytes, form: re.Pattern[str], name: str
) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield match and content of each file of a .tar.gz whose whole name matches `form`."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as stream:
            for member in stream:
                match = form.fullmatch(member.name)
                if not match or not member.isreg():
                    continue
                if member.size > LARGEST_MEMBER:
                    raise DataError(f"{name}: {member.name} has {member.size:,} bytes; too many.")
                yield match, stream.extractfile(member).read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is truncated or damaged ({error}).") from error


OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


MAX_LINE_BYTES = 1 << 24  # bytes
FREE, RATIO = 1 << 26, 100  # bytes a compressed file may expand to, and times its own size
"""Text compresses to a fifth; a file of spaces, to a thousandth or less."""


def _check_regular(path: Path) -> None:
    """Refuse a pipe or a device, of which reading might never end; what is absent is told later."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not a regular file"
        raise DataError(f"{path} is {what}; give a file.")


def lines(path: str | Path, *, keep_ends: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file; one named .gz or .xz is decompressed."""
    opener = OPENERS.get(Path(path).suffix, open)
    try:
        _check_regular(Path(path))
        most = max(FREE, RATIO * Path(path).stat().st_size)
        with opener(path, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                most -= len(line)
                if len(line) > MAX_LINE_BYTES or most < 0:
                    raise DataError(
                        f"{path} has a line of more than {MAX_LINE_BYTES >> 20} MiB, or expands to "
                        f"more than {RATIO} times its size; give one of text."
                    )
                yield line if keep_ends else line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {path} ({reason}); give the path of a whole file, plain, .gz or .xz."
        ) from error


def write_npy_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """Write the header of [count] elements; its size does not depend on the count."""
    file.seek(0)
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**facts, "shape": (count,)})


READ_EACH = 64  # files; of more, names and sizes alone enter the digest
ENDS = 1 << 16  # bytes at the start and at the end of a file that enter the digest


def resolve(data: str) -> str:
    """Return the absolute path of the user's data, or raise DataError if nothing is there.

    A file, a folder, or PATH where PATH.en and PATH.es are; or one of them below the data folder.
    A data set of the hub (hf:ORG/NAME) stays as it is.
    """
    if data.startswith("hf:"):
        return data
    if _files_at(Path(data)):
        return str(Path(data).absolute())
    place = locate(data)
    if place is None:
        raise DataError(f"--data {data}: no such file or folder.")
    return str(place.absolute())


@lru_cache(maxsize=8)
def digest(path: str) -> str:
    """Return sixteen characters that identify the content at a path, wherever it is.

    Names and sizes of all files count, and of a few files the first and the last bytes too: a large
    set is not read as a whole.
    """
    if path.startswith("hf:"):
        return digest_of_dataset(path)
    place, sha256 = Path(path), hashlib.sha256()
    try:
        files = sorted(file for top in _files_at(place) for file in _files_below(top))
        for file in files:
            name = file.relative_to(place.parent).as_posix().removeprefix(place.name)
            sha256.update(os.fsencode(f"{name}\0{file.stat().st_size}\0"))
            if len(files) <= READ_EACH:
                sha256.update(_ends(file))
    except OSError as error:
        raise DataError(
            f"--data {path} cannot be read ({error.strerror}); give files that can."
        ) from error
    return sha256.hexdigest()[:16]


def _files_at(place: Path) -> list[Path]:
    sides = [Path(f"{place}.{side}") for side in ("en", "es")]
    return [path for path in (place, *sides) if path.exists()]


def _files_below(top: Path) -> list[Path]:
    return [file for file in top.rglob("*") if file.is_file()] if top.is_dir() else [top]


def _ends(file: Path) -> bytes:
    _check_regular(file)
    with file.open("rb") as stream:
        first = stream.read(ENDS)
        stream.seek(max(len(first), file.stat().st_size - ENDS))
        return first + stream.read(ENDS)


REFERENCE = re.compile(
    r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<subset>[\w.-]+))?"
    r"(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
FORM = "hf:ORG/NAME[/SUBSET][@REVISION][:SPLIT]"
TRAIN = "train"  # the split that is read unless another is named
SINGLE, SEVERAL = "dataset_info.json", "dataset_dict.json"  # files that save_to_disk writes
BATCH_ROWS = 1024  # rows that are converted at once


def is_saved_dataset(path: Path | str) -> bool:
    """Return whether a path names a data set of the hub or a folder of `save_to_disk`."""
    place = Path(path)
    return str(path).startswith("hf:") or any(
        (place / name).is_file() for name in (SINGLE, SEVERAL)
    )


def rows_of_dataset(path: str) -> tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]:
    """Return the columns and the rows of a data set, see `FORM`; classes are their names."""
    dataset = _opened(path)
    return list(dataset.column_names), enumerate(_rows(dataset), 1)


def digest_of_dataset(path: str) -> str:
    """Return sixteen characters that identify a data set by its columns and all its rows."""
    dataset = _opened(path)
    content = hashlib.sha256(json.dumps(dataset.column_names).encode())
    for row in _rows(dataset):
        content.update(json.dumps(row, default=str).encode())
    return content.hexdigest()[:16]


def _rows(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield rows without decoding images; NaN and the class -1 are missing values."""
    names = {
        column: feature.names
        for column, feature in dataset.features.items()
        if getattr(feature, "names", None)
    }
    for batch in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
        for row in batch.to_pylist():
            for column, classes in names.items():
                number = row[column]
                row[column] = None if number is None or number < 0 else classes[number]
            yield {n: value if value == value else None for n, value in row.items()}  # noqa: PLR0124


def _opened(path: str) -> Any:
    reference = REFERENCE.fullmatch(path)
    if path.startswith("hf:") and reference is None:
        raise ConfigError(f"{path!r:.80} is not a data set of the hub; give {FORM}.")
    with installed_for(path, "hub"):
        import datasets
        from datasets.exceptions import DatasetsError
    try:
        if reference is None:
            opened = datasets.load_from_disk(path)
        else:
            opened = datasets.load_dataset(
                reference["name"],
                reference["subset"],
                revision=reference["revision"],
                split=reference["split"],
            )
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = f"{str(error).strip().partition(chr(10))[0]:.200}"
        raise DataError(
            f"{path} cannot be read ({reason}); give {FORM} of a data set that you may read, or a "
            "folder that datasets.save_to_disk wrote whole."
        ) from error
    if isinstance(opened, dict) and TRAIN not in opened:
        how = "its folder" if reference is None else f"it, as {path}:NAME"
        raise DataError(
            f"{path} has the splits {', '.join(map(str, opened))} and none named {TRAIN}; "
            f"name {how}."
        )
    return opened[TRAIN] if isinstance(opened, dict) else opened
